"""What tells whether training works on a torch: groups, caches, shards, formats, processes that enter again."""

from typing import Final

TESTS: Final = (
    *("tests/unit/trainer", "tests/unit/checkpoint"),
    *("tests/integration/trainer/test_reentry.py", "tests/integration/trainer/test_run_without_launcher.py"),
    *("tests/integration/convert/test_convert_formats.py", "tests/integration/layouts/test_layouts_training.py"),
)
