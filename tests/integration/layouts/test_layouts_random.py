from pathlib import Path

from layouts_troupe import Troupe
from layouts_zoo import MESHES, draw, load_all, save_all

CASES = 24
LOADS = 2


def test_what_is_saved_under_one_random_layout_is_loaded_under_another(troupe: Troupe, tmp_path: Path) -> None:
    cases = [draw(seed, tmp_path, loads=LOADS) for seed in range(CASES)]
    for ranks in MESHES:
        troupe.play(save_all, cases, ranks=ranks)
    wrong = [each for ranks in MESHES for answer in troupe.play(load_all, cases, ranks=ranks) for each in answer]
    assert not wrong
