"""The readers of shader compilers' assembly, on lines that the compilers have printed, and what is
made of them. Nothing here needs the compilers."""

from __future__ import annotations

import tomllib
from dataclasses import astuple

import numpy as np
import pytest
from interpreted_gpu import InterpretedGpu

from bench.gpu_lab import budget, graphs
from bench.gpu_lab.bound import RATES, bound, busy, rates_of
from bench.gpu_lab.budget import amended, limits, regress, text
from bench.gpu_lab.chips import CHIPS, TABLE
from bench.gpu_lab.compile import chooser, described, multiplies
from bench.gpu_lab.graphs import graph_of
from bench.gpu_lab.listing import executed, hot_loop, mix, read
from bench.gpu_lab.model import across, compared, fitted, row, unit_of
from bench.gpu_lab.programs import changed, programs_of
from bench.gpu_lab.report import line, summary, table
from smalti.errors import InputError
from smalti.schedule.group import GroupContraction, GroupMap
from smalti.schedule.residency import CompilerNeeds, KeptWords

AMD = """\
BB0:
	v_and_b32_e32 v0, 7, v84                                    ; 3600a887
	buffer_load_b128 v[20:23], v5, s[12:15], 0 offen            ; e05c0000 80431405
	scratch_store_b32 off, v112, s20 offset:-4092               ; dc691004 00147080
	s_mov_b32 s21, 0                                            ; be950080
	s_branch BB1                                                ; bfa0000a
BB3:
	v_mov_b32_e32 v6, v92                                       ; 7e0c035c
BB1:
	buffer_load_b64 v[70:71], v55, s[16:19], 0 offen            ; e0540000 80444637
	ds_load_b64 v[240:241], v65 offset:8                        ; d9d80000 f0000041
	ds_load_u16_d16_hi v105, v103 offset:20752                  ; da9c5110 69000067
	ds_load_2addr_b64 v[0:3], v65 offset1:1                     ; d9d80000 f0000041
	s_waitcnt lgkmcnt(0)                                        ; bf89fc07
	v_dual_mov_b32 v21, v61 :: v_dual_mov_b32 v20, v55          ; ca20013d 15140137
	v_wmma_f32_16x16x16_f16 v[216:223], v[6:13], v[14:21], v[216:223] ; cc4040d8 1f621d06
	v_wmma_f32_16x16x16_f16 v[24:31], v[232:239], v[14:21], v[24:31] ; cc404018 1c621de8
	scratch_load_b32 v6, off, s20 offset:-4080                  ; dc511010 06140080
	ds_store_b64 v7, v[118:119] offset:20480                    ; d9345000 00007607
	s_barrier                                                   ; bfbd0000
	s_cbranch_scc0 BB3                                          ; bfa1fcda
BB4:
	v_fma_f32 v0, v1, v2, v3                                    ; d6130000 040e0501
	buffer_store_b128 v[20:23], v5, s[12:15], 0 offen           ; e05c0000 80431405
	s_endpgm                                                    ; bfb00000
"""
NVIDIA = """\
block.u 0 L2 [] -> {
 r20..24 = ld.global.a64.constant.b128 [r16..18], pT        // delay=1 wr:1
           st.shared.strong.cta.b64 [r18.x8] r16..18        // delay=1 rd:2
} -> [1]
block.u 1 L1 [0, 4] -> {
 ur3     = lop3.LUT[0xc0] ur1 0x1 rZ                        // delay=1
 r56..60 = ldsm.16.m8n8.x4 [r52]                            // delay=2 wt=001100 rd:2 wr:3
 r61     = ld.shared.strong.cta.b32 [r52+0x1400], pT        // delay=2 wr:2
 r62     = movm.16.m8n8.trans r61                           // delay=2 wt=000101 rd:2 wr:0
 r0..4   = hmma.m16n8k16.f32 r56..60 r62..64 r0..4          // delay=15 wt=001011 rd:0 wr:1
           st.local.b32 [r1] r2                             // delay=1
           bar.sync                                         // delay=6 yld
 up0     = isetp.ge.u32 ur1 0x10                            // delay=9
           bra !up0 L7                                      // delay=1 wt=001111
} -> [2, 4]
block.u 2 L5 [1] -> {
 r7      = mov rZ                                           // delay=1
           exit                                             // delay=1
} -> []
block.u 4 L7 [1] -> {
 r21     = mov r60                                          // delay=1
           bra pT L1                                        // delay=1
} -> [1]
"""
INTEL = """\
mov(8)          g42<1>UD        0x0000UW                        { align1 1Q };
send(8)         nullUD          g67UD           g66UD           0x42000504                a0.2<0>UD
                ugm MsgDesc: ( store, a32, d32, V1, L1STATE_L3MOCS dst_len = 0, ss )  { align1 };
LABEL1:
mad(8)          g67<1>UD        0x0140UW        g67<8,8,1>UW    0x0004UW { align1 WE_all 1Q I@4 };
send(8)         g33UD           g32UD           nullUD          0x62403500                0x00000000
                ugm MsgDesc: ( load, a32, d32, V4, L1STATE_L3MOCS dst_len = 4, bti )  BTI 0  { };
send(8)         g5UD            g32UD           nullUD          0x62403500                0x00000000
                slm MsgDesc: ( load, a32, d16u32, V1, L1STATE_L3MOCS dst_len = 1, flat )  { };
send(1)         g54UD           g55UD           nullUD          0x4210c500                a0.2<0>UD
                ugm MsgDesc: ( load, a32, d32, V8, transpose, dst_len = 1, ss )  { align1 1N $4 };
sync nop(1)                     null<0,1,0>UB                   { align1 WE_all 1N $3.dst };
add3(8)         g28<1>D         g102<8,8,1>D    g54<8,8,1>D     g2.0<0,1,0>D { align1 1Q };
(+f0.0) mov(8)  g29<1>D         g102<8,8,1>D                    { align1 1Q };
mad(8)          g30<1>F         g51<1,1,0>F     g3<1,1,0>F      g4<1,1,0>F { align1 1Q };
dpas.8x8(8)     g51<1>F         g3<1,1,0>F      g43<1,1,0>HF    g35<1,1,0>HF { align1 WE_all 1Q };
while(8)        JIP:  LABEL1                                    { align1 1Q };
"""


def test_amd_listing_is_read() -> None:
    hot, around = hot_loop(read(AMD))
    assert mix(hot) == {
        "barrier": 1, "branch": 1, "global load 8": 1, "matrix": 2, "move": 2, "scratch load 4": 1,
        "shared load 16": 1, "shared load 2": 1, "shared load 8": 1, "shared store 8": 1, "wait": 1}
    assert around == hot
    assert sum(each.products for each in hot) == 2 * 16 ** 3
    assert mix(read(AMD))["scratch store 4"] == 1


def test_nvidia_listing_is_read() -> None:
    hot, _ = hot_loop(read(NVIDIA))
    assert mix(hot) == {
        "alu": 2, "barrier": 1, "branch": 2, "matrix": 1, "move": 1, "scratch store 4": 1,
        "shared load 16": 1, "shared load 4": 1, "shuffle": 1}
    assert sum(each.products for each in hot) == 16 * 8 * 16
    assert sum(each.cycles for each in hot) == 1 + 2 + 2 + 2 + 15 + 1 + 6 + 9 + 1 + 1 + 1


def test_intel_listing_is_read() -> None:
    hot, _ = hot_loop(read(INTEL))
    assert mix(hot) == {
        "alu": 2, "branch": 1, "fma": 1, "global load 16": 1, "matrix": 1, "move": 1,
        "scratch load 4": 1, "shared load 2": 1, "wait": 1}
    assert sum(each.products for each in hot) == 8 * 8 * 16
    assert mix(read(INTEL))["scratch store 4"] == 1


BYTES = {
    "navi31": ("BB0:\n\tv_wmma_i32_16x16x16_iu8 v[8:15], v[112:115], v[120:123], v[8:15] "
               "neg_lo:[1,1,0]\n", 16 ** 3, 32, 32),
    "ad104": ("block 0 L0 [] -> {\n r0..4 = imma.m16n8k32.i8.i8 r132..136 r142..144 r0..4 // "
              "delay=15 wr:2\n", 16 * 8 * 32, 16, 32),
    "bmg": ("dpas.8x8(16)    g33<1>D   null<1,1,0>D    g1<1,1,0>B      g9<1,1,0>B { align1 };\n",
            8 * 16 * 32, 16, 16),
}
DOTS = {"navi31": "BB0:\n\tv_dot4_i32_iu8 v1, v2, v3, v1\n", "bmg": (
    "dp4a(16)  g3<1>D  g4<8,8,1>D  g5<8,8,1>D  g6<8,8,1>D { align1 1H };\n"),
    "ad104": "block 0 L0 [] -> {\n r0 = idp4.i8.i8 r1 r2 r0 // delay=2\n"}


@pytest.mark.parametrize("chip", BYTES)
def test_products_of_bytes_have_rates_of_their_own(chip: str) -> None:
    text, products, clocks, lanes = BYTES[chip]
    (line,) = [each for each in read(text) if each.kind == "matrix"]
    assert line.products == products and line.bytes
    assert busy([line], rates_of(chip), lanes)["work"] == clocks
    assert not any(each.bytes for listing in (AMD, NVIDIA, INTEL) for each in read(listing))


@pytest.mark.parametrize("chip, clocks", [("navi31", 1), ("bmg", 1), ("ad104", 2)])
def test_dot_products_are_work_where_there_are_no_matrices(chip: str, clocks: int) -> None:
    lines = [each for each in read(DOTS[chip]) if each.kind != "label"]
    assert [each.kind for each in lines] == ["dot"]
    assert busy(lines, rates_of(chip), 16 if chip == "bmg" else 32)["work"] == clocks


NESTED = """\
BB0:
	s_nop 0
BB1:
	scratch_load_b32 v6, off
BB2:
	v_fma_f32 v0, v1, v2, v3
	s_cbranch_scc0 BB2
BB3:
	s_cbranch_scc0 BB1
BB4:
	s_endpgm
"""


def test_loops_around_the_hottest_are_told() -> None:
    hot, around = hot_loop(read(NESTED))
    assert mix(hot) == {"branch": 1, "fma": 1}
    assert mix(around) == {"branch": 2, "fma": 1, "scratch load 4": 1}
    assert executed(read(NESTED)) == 8 * 8


def test_what_a_loop_does_most_often_is_hot() -> None:
    """Work in front of an inner loop counts less than that in it, however much it is."""
    more = NESTED.replace("	scratch_load_b32 v6, off", "	v_fma_f32 v0, v1, v2, v3\n" * 4)
    hot, around = hot_loop(read(more))
    assert mix(hot) == {"branch": 1, "fma": 1} and mix(around) == {"branch": 2, "fma": 5}
    assert executed(read(more)) == 4 * 8 + 8 * 8


def test_what_fills_lines_behind_a_jump_leads_into_no_loop() -> None:
    """AMD's compiler lets a loop begin at a line of code: then it is entered by a jump over that,
    and what copies a counter for the next turn."""
    padded = NESTED.replace("BB2:\n", """\
	s_branch BB6
	s_nop 0
	(then repeated 1 times)
BB5:
	v_mov_b32_e32 v3, v4
BB6:
""").replace("s_cbranch_scc0 BB2", "s_cbranch_scc0 BB5")
    hot, around = hot_loop(read(padded))
    assert mix(hot) == {"branch": 1, "fma": 1, "move": 1}
    assert mix(around) == {"branch": 3, "fma": 1, "move": 1, "scratch load 4": 1}
    assert executed(read(padded)) == 8 * 8


def test_unrolled_work_is_the_whole_listing() -> None:
    lines = read(AMD.replace("s_cbranch_scc0 BB3", "s_nop 0"))
    assert hot_loop(lines) == (lines, lines)


def test_bound_is_work_over_the_busiest_unit() -> None:
    hot, _ = hot_loop(read(AMD))
    clocks = busy(hot, rates_of("navi31"), 32)
    assert clocks == {"work": 64, "instructions": 64 + 2, "issue": 0,
                      "shared memory": (4 + 8 + 16 + 8) * 32 / 64}
    assert bound(hot, rates_of("navi31"), 32) == (64 / 66, "instructions")
    assert rates_of("navi21") != rates_of("navi31") == RATES["navi3"]


def test_every_chip_has_rates() -> None:
    assert all(rates_of(name) for name in CHIPS) and set(TABLE) <= set(CHIPS)


def test_schedules_are_changed_where_they_have_the_fields() -> None:
    product = GroupContraction(64, 64, 32, 16, 16)
    assert changed("tile_k=16,buffers=1")(product).tile_k == 16
    assert changed("size=32")(product) == product
    assert changed("GroupMap.size=32,GroupContraction.pad=8")(GroupMap(64)) == GroupMap(32)
    assert changed("matrix=16x16x16")(product).matrix == "16x16x16"
    for wrong in ("bufers=1", "buffers", "GroupMap.pad=8", "Group.size=3"):
        with pytest.raises(InputError):
            changed(wrong)


def test_graphs_have_names_and_numbers() -> None:
    assert graph_of("mm:32:16:8").outputs["y"].shape == (1, 32, 8)
    for wrong in ("unknown", "mm:x", "mm:-1"):
        with pytest.raises(InputError):
            graph_of(wrong)


def program(name: str, **fields: object) -> dict[str, object]:
    """A report."""
    return {"number": 0, "name": name, "form": "contraction", "count": 1, "subgroup": 32,
            "registers": 96, "spills": 0, "scratch": 0, "occupancy": 8, "bound": 0.9,
            "unit": "work", "loop": {"matrix": 4}, **fields}


def test_graphs_are_summed_up() -> None:
    reports = [program("a", spills=5, scratch=2, occupancy=2), program("b"),
               program("c", bound=0.1, loop={"fma": 8}), program("d", form="map", occupancy=1),
               program("e", form="attention", bound=0.5),
               {"number": 5, "name": "f", "form": "map", "count": 1, "error": "no"}]
    found = summary("unet", "navi31", reports)
    assert found == {"graph": "unet", "chip": "navi31", "programs": 6, "rejected": 1, "spill": 1,
                     "scratch": 1, "spills_most": 5, "occupancy": (2, 8), "products": (0.9, 0.9),
                     "attentions": (0.5, 0.5)}
    assert table([found]).splitlines()[-1] == \
        "| unet | navi31 | 6 | 1 | 1 (most 5) | 1 | 2, 8 | 90 / 90 % | 50 / 50 % |"
    assert line(reports[-1]).endswith("REJECTED: no")
    assert "spills 5, scratch in loop 2, occupancy 2, at most 90%" in line(reports[0])


def needing(registers: int, kept: tuple[float, ...], **fields: object) -> dict[str, object]:
    """A report with what is alive in the program."""
    return program("x", needed=registers, registers=registers, kept=[kept], shared=0, size=128,
                   **fields)


def test_predictions_are_compared() -> None:
    unit = unit_of("navi31")
    needs = CompilerNeeds(1, 1, 1, 1, 0, 0, 0, 10)
    right = compared(needing(100, (64, 16, 0, 10, 7)), unit, needs)
    assert (right.predicted, right.error(right.predicted)) == (100, 0)
    assert right.spills == (False, False)
    assert right.occupancy == (8, 10)  # two of 12 are given away for loads ahead of products
    plain = compared(needing(90, (64, 0, 16, 10, 7)), unit, needs)
    assert plain.predicted == right.predicted and plain.occupancy == (8, 12)
    wrong = compared(needing(300, (64, 0, 0, 0, 0), spills=44), unit, needs)
    assert wrong.spills == (True, False) and wrong.error(74) == 226 / 300
    assert row("navi31", [right, wrong])[:6] == ("navi31", "2", "37.7 %", "50.0 %", "50.0 %", "1")


def test_intel_counts_registers_of_32_bytes() -> None:
    assert compared(needing(200, (64, 0, 0, 0, 0), subgroup=16), unit_of("bmg"),
                    CompilerNeeds(1, 1, 1, 1, 0, 0, 0, 36)).error(100) == 0


def test_constants_are_fitted() -> None:
    rng, unit = np.random.default_rng(0), unit_of("navi31")
    known = CompilerNeeds(1.1, 2.5, 0.7, 0.9, 0.3, 0.2, 1.4, 6.0, held=1.2)
    reports = []
    for kept in rng.integers(0, 64, (60, 8)).astype(float):
        reports.append(needing(known.registers(KeptWords(*kept)), tuple(kept)))
    found = fitted(reports, unit)
    assert np.allclose(astuple(found), astuple(known), atol=[*[0.05] * 7, 1.0, 0, 0, 0.05])
    halves = {"a": reports[:30], "b": reports[30:]}
    assert max(each.error(each.predicted) for each in across(halves, unit)) < 0.05


def test_a_regress_is_told() -> None:
    found = summary("unet", "navi31", [program("a", scratch=2, occupancy=2), program("b")])
    assert limits(found) == {"rejected": 0, "scratch": 1, "occupancy": 5, "products": [90, 90]}
    assert not list(regress(found, limits(found)))
    strict = {"rejected": 0, "scratch": 0, "occupancy": 6, "products": [90, 95],
              "attentions": [50, 60]}
    assert list(regress(found, strict)) == [
        "unet on navi31: scratch 1, at most 0",
        "unet on navi31: median occupancy 5, at least 6",
        "unet on navi31: median bound of products 90 %, at least 95 %",
        "unet on navi31: worst bound of attentions 0 %, at least 50 %",
        "unet on navi31: median bound of attentions 0 %, at least 60 %"]
    before = {"unet": {"navi31": {"scratch": 9}, "bmg": {"scratch": 7}}, "flux": {"bmg": strict}}
    assert tomllib.loads(text(amended(before, [found]), "radv")) == {
        "unet": {"navi31": limits(found), "bmg": {"scratch": 7}}, "flux": {"bmg": strict}}


def test_every_graph_has_a_budget_on_every_chip() -> None:
    assert {graph: list(chips) for graph, chips in budget.read().items()} == \
        dict.fromkeys(graphs.TABLE, list(TABLE))


def test_programs_are_told_with_what_they_are_of() -> None:
    """A product over much depth for few sums: shares of the depth, and a step that adds them."""
    plain = programs_of(InterpretedGpu(), graph_of("mm:64:4096:64"), "f16")
    assert [each.step for each in plain] == [0, 1] and plain[0].schedule.split > 1
    assert [multiplies(each) for each in plain] == [True, False]
    assert all(each.code.decode().startswith(f"program {each.shader.name}") for each in plain)
    assert described(plain[0].kernel) == "contraction 1x1x64x64 over 1x1x4096"
    assert chooser(plain[0], InterpretedGpu().limits)["groups"] >= 1
    (whole,) = programs_of(InterpretedGpu(), graph_of("mm:64:4096:64"), "f16", changed("split=1"))
    assert whole.schedule.split == 1 and whole.count == 1
