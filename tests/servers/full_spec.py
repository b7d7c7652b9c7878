"""The spec of a TrainingJob with a value of its own in every section, for what a test does to each field."""

from typing import Any

FULL_SPEC: dict[str, Any] = {
    "entrypoint": ["train.py", "--config", "7b.toml"],
    "nodes": {"min": 30, "max": 32, "spares": 2},
    "processesPerNode": 8,
    "parallelism": {"tensor": 4, "context": 2, "pipeline": 2},
    "startup": {"preflight": "light", "timeout": "10m"},
    "checkpoint": {
        "uri": "s3://runs/gpt-7b",
        "interval": "auto",
        "keep": 3,
        "memory": {"everySteps": 1, "replicas": 1},
    },
    "faultPolicy": {
        "heartbeat": {"interval": "1s", "lost": "3s"},
        "hang": {"timeout": "auto"},
        "xid": {"79": "Evict", "94": "Restart"},
        "thermal": {"slowdownMarginC": 3, "sustained": "60s", "action": "Evict"},
        "corruption": {"fingerprintEverySteps": 100, "selfTestEvery": "30m", "action": "Evict"},
        "preemption": {"source": "auto", "action": "Migrate"},
        "budget": {"evictions": 4, "per": "1h", "clusterFraction": "5%"},
        "restarts": {"max": 100, "per": "24h", "backoff": "10s"},
    },
    "cost": {
        "gpuHour": 2.50,
        "currency": "USD",
        "prices": [
            {"gpu": "NVIDIA-H100-80GB-HBM3", "capacity": "Spot", "gpuHour": 1.6},
            {"capacity": "Spot", "gpuHour": 1},
        ],
        "budget": {"amount": 250000, "alertAt": "80%"},
    },
    "utilization": {"gigaflopsPerToken": 42, "peakTeraflopsPerGpu": 989.5},
    "reporting": {
        "wandb": {"project": "gpt-7b", "entity": "research", "url": "https://wandb.example"},
        "mlflow": {"uri": "https://mlflow.example", "experiment": "gpt-7b"},
        "tensorboard": True,
        "webhook": "https://hooks.example/oncall",
        "secret": "holdfast-reporting",
        "ranks": 2,
    },
    "suspend": False,
    "ttlAfterFinished": "24h",
    "template": {
        "spec": {"containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 8}}}]},
    },
}
