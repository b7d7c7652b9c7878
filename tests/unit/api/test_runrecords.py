"""What a run leaves of itself: its manifest, its history, and no secret in either."""

import struct

import msgspec
import pytest

from holdfast.api import runhistory, runmanifest
from holdfast.api.errors import Damaged
from holdfast.api.runhistory import PRINTS_MAX, STEPS_MAX, RunHistory
from holdfast.api.runmanifest import Code, RunManifest, bounded, fitted
from holdfast.api.secrecy import LEFT_OUT, is_secret, without_secrets, words_without_secrets

SECRETS = (
    "HF_TOKEN",
    "wandb_api_key",
    "AWS_SECRET_ACCESS_KEY",
    "db.password",
    "apiKey",
    "authToken",
    "OPENAI_API_KEY",
)
PLAIN = ("eos_token", "max_tokens", "key_width", "tokenizer", "heads", "pad_token_id", "n_keys", "seed")


@pytest.mark.parametrize("name", SECRETS)
def test_a_name_that_opens_a_door_is_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", PLAIN)
def test_a_name_of_a_model_is_none(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('+API_KEY = "abcdef123"', f"+API_KEY = {LEFT_OUT}"),
        ("+  password: hunter2hunter2", f"+  password: {LEFT_OUT}"),
        ('os.environ["HF_TOKEN"] = "x"', f'os.environ["HF_TOKEN"] = {LEFT_OUT}'),
        ("clone https://me:pass@host/x", f"clone https://{LEFT_OUT}@host/x"),
        ("hf_" + "a" * 30, LEFT_OUT),
        ("AKIA" + "A1B2C3D4E5F6G7H8", LEFT_OUT),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", LEFT_OUT),
        ("eos_token = '</s>'", "eos_token = '</s>'"),
        ("learning_rate = 3e-4", "learning_rate = 3e-4"),
    ],
)
def test_what_looks_like_a_secret_is_left_out_of_a_text(text: str, left: str) -> None:
    assert without_secrets(text) == left


@pytest.mark.parametrize(
    "text",
    [
        'password: str = "hunter2"',
        'TOKEN = b"hunter2"',
        'token = ("hunter2"',
        'password="ab\\"hunter2"',
        "+password: |\n+  hunter2\n",
        "Authorization: Basic hunter2",
        "--env=WANDB_API_KEY=hunter2",
        "url=https://h/x?api_key=hunter2&token=hunter2",
        'environ.setdefault("HF_TOKEN", "hunter2")',
        'add("--api-key", default="hunter2")',
        "PGPASSWORD=hunter2",
        "MYSQL_PWD=hunter2",
        'ssh_key = "hunter2"',
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nhunter2\n-----END PGP PRIVATE KEY BLOCK-----",
    ],
)
def test_however_a_secret_is_written_it_is_left_out(text: str) -> None:
    assert "hunter2" not in without_secrets(text)


@pytest.mark.parametrize(
    "text",
    [
        "token_embedding = nn.Embedding(3, 4)",
        "next_token = logits.argmax()",
        "max_token = 5",
        "--token-dropout=0.1",
        "PWD=/home",
        'tokens = batch["tokens"]',
        "lr: float = 0.1",
    ],
)
def test_the_words_of_a_language_model_stay(text: str) -> None:
    assert without_secrets(text) == text


def test_what_is_no_character_and_what_is_too_much_can_be_written() -> None:
    manifest = RunManifest(1, command=(runmanifest.bounded("caf\udce9"),))
    assert runmanifest.decode(runmanifest.encode(manifest)) == manifest
    section = {f"s{number}": "x" * 4000 for number in range(2000)}
    whole = RunManifest(1, command=("python",), settings={"configuration": section})
    fitting = runmanifest.fitted(whole, runmanifest.BYTES_MAX)
    assert runmanifest.decode(runmanifest.encode(fitting)).cut == fitting.cut != ()


def test_a_command_line_keeps_its_flags_and_loses_what_is_secret() -> None:
    words = ("train.py", "--api-key", "abc", "--token=def", "--seed", "3", "--verbose")
    left = ("train.py", "--api-key", LEFT_OUT, f"--token={LEFT_OUT}", "--seed", "3", "--verbose")
    assert words_without_secrets(words) == left


def test_a_manifest_is_read_as_it_was_written_and_a_foreign_one_is_damaged() -> None:
    manifest = RunManifest(
        runmanifest.FORMAT, 3, ("python", "train.py"), Code(commit="abc"), {"seeds": {"a": "1"}}
    )
    document = runmanifest.encode(manifest)
    assert runmanifest.decode(document) == manifest
    # A later version may say more.
    more = msgspec.json.encode({**msgspec.json.decode(document), "further": 1})
    assert runmanifest.decode(more) == manifest
    for wrong in (b"", b"{}", document.replace(b'"format":1', b'"format":2'), b"x" * (runmanifest.BYTES_MAX + 1)):
        with pytest.raises(Damaged):
            runmanifest.decode(wrong)


def test_what_is_told_fits_and_says_what_was_cut() -> None:
    packages = {f"package-{number}": "1.0" for number in range(4000)}
    large = RunManifest(
        1, code=Code(diff="x" * 60000, commit="abc"), settings={"packages": packages, "seeds": {"a": "1"}}
    )
    told = fitted(large)
    assert len(runmanifest.encode(told)) <= runmanifest.TOLD_BYTES_MAX
    assert told.cut == ("the diff", "the hashes of files", "packages")
    assert (told.code.commit, told.of(runmanifest.Section.SEEDS)) == ("abc", {"a": "1"})
    assert fitted(told) == told
    assert len(bounded("x" * 5000)) == 4096


def test_a_history_tells_of_the_steps_up_to_the_one_that_is_saved() -> None:
    kept = RunHistory()
    for step in range(1, 6):
        kept.losses.add(step, step / 10)
        kept.norms.add(step, step * 1.0)
        kept.fingerprint(step, "layers.0", 2**64 - step)
    found = runhistory.decode(kept.encode(3))
    assert found.losses == {1: 0.1, 2: 0.2, 3: 0.3}
    assert found.norms == {1: 1.0, 2: 2.0, 3: 3.0}
    assert found.fingerprints[3] == {"layers.0": 2**64 - 3}
    assert max(found.fingerprints) == 3


def test_a_round_goes_on_with_the_history_of_what_it_restored_and_forgets_what_it_gave_up() -> None:
    before = RunHistory()
    for step in range(1, 5):
        before.losses.add(step, 1.0)
        before.fingerprint(step, "a", step)
    stored = runhistory.decode(before.encode(4))
    fresh, same = RunHistory(), RunHistory()
    for step in range(3, 7):
        same.losses.add(step, 2.0)
        same.fingerprint(step, "a", 10 * step)
    for kept in (fresh, same):
        kept.go_on(4, stored)
        kept.losses.add(5, 3.0)
    assert runhistory.decode(fresh.encode(9)).losses == {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 3.0}
    assert runhistory.decode(same.encode(9)).losses == {1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0, 5: 3.0}
    assert runhistory.decode(same.encode(9)).fingerprints == {1: {"a": 1}, 2: {"a": 2}, 3: {"a": 30}, 4: {"a": 40}}
    same.go_on(0, runhistory.StoredHistory())
    assert runhistory.decode(same.encode(9)).losses == {}


def test_a_step_that_is_trained_again_takes_back_what_was_seen_since() -> None:
    kept = RunHistory()
    for step in (1, 2, 3, 2, 4, 4):
        kept.losses.add(step, float(step))
        kept.fingerprint(step, "a", step)
    found = runhistory.decode(kept.encode(9))
    assert (found.losses, [*found.fingerprints]) == ({1: 1.0, 2: 2.0, 4: 4.0}, [1, 2, 4])
    kept.go_on(2, found)
    kept.losses.add(2, 9.0)
    assert runhistory.decode(kept.encode(9)).losses == {1: 1.0, 2: 9.0}


def test_only_the_newest_steps_are_kept() -> None:
    kept = RunHistory()
    for step in range(2 * STEPS_MAX + 10):
        kept.losses.add(step, 0.0)
    for step in range(2 * PRINTS_MAX + 10):
        kept.fingerprint(step, "a", step)
    found = runhistory.decode(kept.encode(10**9))
    assert (len(found.losses), max(found.losses)) == (STEPS_MAX, 2 * STEPS_MAX + 9)
    assert (len(found.fingerprints), max(found.fingerprints)) == (PRINTS_MAX, 2 * PRINTS_MAX + 9)


def test_a_history_that_is_none_is_damaged() -> None:
    kept = RunHistory()
    kept.losses.add(1, 1.0)
    kept.fingerprint(1, "a", 1)
    whole = msgspec.msgpack.decode(kept.encode(1))
    wrong = [
        {**whole, **change} for change in ({"format": 9}, {"losses": b"123"}, {"prints": b"1"}, {"names": []})
    ]
    rows = struct.Struct("<qd")
    for steps in ((2, 1), (1, 1), (-1, 1)):
        packed = b"".join(rows.pack(step, 1.0) for step in steps)
        wrong += [{**whole, "losses": packed}, {**whole, "norms": packed}]
    for steps in ((2, 1), (-1, 1)):
        wrong.append({**whole, "prints": b"".join(struct.pack("<qIQ", step, 0, 1) for step in steps)})
    documents = [b"", b"\x80", b"x" * (runhistory.BYTES_MAX + 1), *map(msgspec.msgpack.encode, wrong)]
    for document in documents:
        with pytest.raises(Damaged):
            runhistory.decode(document)
