"""The job of the bench."""

from typing import Any, Final

NAME: Final = "gpt"
UID: Final = "4f1c2f0e-0d6a-4c53-9f3b-2c1f6a6d1a10"  # of a job that only a bare client makes pods of


def job_manifest(namespace: str, members: int) -> dict[str, Any]:
    """A training job of the size and kind people write: GPUs, volumes, a few variables."""
    trainer = {
        "name": "trainer",
        "image": "registry.example.com/train@sha256:" + "0" * 64,
        "resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "180", "memory": "1800Gi"}},
        "env": [{"name": f"SETTING_{number}", "value": "a value of common length"} for number in range(10)],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "checkpoints", "mountPath": "/ckpt"}],
    }
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("data", "checkpoints")]
    template = {"spec": {"serviceAccountName": "default", "containers": [trainer], "volumes": volumes}}
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": NAME, "namespace": namespace, "uid": UID, "generation": 1},
        "spec": {
            "entrypoint": ["train.py", "--config", "405b.yaml"],
            "nodes": {"min": max(1, members // 2), "max": members},
            "template": template,
        },
    }
