"""What a scenario takes for granted is what was measured, and what its page says."""

import math
import re
from pathlib import Path

from holdfast.simulator.scenario import Times

DOCS = Path(__file__).parents[3] / "docs"
KNOWN = Times()


def test_a_worker_goes_on_in_its_process_as_soon_as_the_bench_of_recoveries_measured() -> None:
    measured = (DOCS / "comparison.md").read_text()
    row = next(line for line in measured.splitlines() if line.startswith("| worker killed, 2 nodes x 2 |"))
    least, most = re.findall(r"\(([\d.]+) to ([\d.]+)\)", row.rsplit("|", 2)[1])[0]
    assert float(least) <= KNOWN.reenter_s <= float(most)


def test_the_page_states_the_times_and_how_each_phase_grows() -> None:
    page = (DOCS / "simulator.md").read_text()
    meet = [KNOWN.join_s + KNOWN.join_per_doubling_s * math.log2(nodes) for nodes in (2, 2048, 12_500)]
    assert f"| {meet[0]:.1f} s, {meet[1]:.0f} s, {meet[2]:.0f} s | with the logarithm" in page
    rest = KNOWN.stop_s + KNOWN.reenter_s + KNOWN.load_memory_s + KNOWN.first_step_s
    on2, on2048, on12500 = [f"{each + rest:.0f} s" for each in meet]
    assert f"{on2} after it was decided on 2 nodes, {on2048} on 2,048 and {on12500} on 12,500" in page
    said = {
        f"1 s and {KNOWN.join_per_doubling_s:g} s for each doubling": KNOWN.join_s == 1.0,
        f"{KNOWN.load_memory_s:g} s from memory, {KNOWN.load_s:g} s from storage": True,
        f"{KNOWN.reenter_s:g} s in the process; {KNOWN.start_s:g} s in a new one": True,
        f"{KNOWN.start_cold_s:g} s of a cold one": True,
        f"{KNOWN.save_stall_s:g} s standing still, {KNOWN.save_took_s:g} s until it is committed": True,
        f"self-test of who is new {KNOWN.test_s:g} s": True,
        f"{KNOWN.provision.median_s:g} s in the median": True,
        f"first step | {KNOWN.first_step_s:g} s more": True,
    }
    assert all(holds and words in page for words, holds in said.items()), said
