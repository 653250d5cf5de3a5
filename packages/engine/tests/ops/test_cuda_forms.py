"""Which steps are captured, and that a padded step is the same step."""

from dataclasses import replace

import numpy as np
import pytest
from host_device import Columns
from spaninfer_engine.ops.cuda_forms import PROMPT_ROWS, Form, Forms, Gap, most_prompt_rows, pad
from spaninfer_engine.ops.step import Rotation
from spaninfer_engine.plan import Slice
from spaninfer_engine.run.describe import describe

FORMS = Forms(requests=200, most_prompt_rows=600)


def decodes(count):
    return [Slice(number, 40 + number, 41 + number, 40 + number, True) for number in range(count)]


def prompt(number, length, *, draws=True):
    return Slice(number, 3, 3 + length, 3 + length - draws, draws)


def described(slices, capacity=300):
    columns = Columns.poisoned(capacity)
    rows = [(7 * number) % 200 for number in range(len(slices))]
    return columns, describe(slices, rows, columns, {}).launch((None,))


@pytest.mark.parametrize(
    ("slices", "form"),
    [
        (decodes(1), Form(1)),
        (decodes(3), Form(4)),
        (decodes(9), Form(16)),
        (decodes(65), Form(80)),
        (decodes(129), Form(160)),
        (decodes(200), Form(200)),
        ([prompt(1, 20)], Form(0, 1, 32)),
        ([prompt(1, 20), prompt(2, 50)], Form(0, 16, 128)),
        ([prompt(1, 416)], Form(0, 1, 416)),
        ([*decodes(3), prompt(7, 20), prompt(8, 70, draws=False)], Form(16, 16, 128)),
        ([*decodes(3), prompt(7, 416)], Form(16, 16, 448)),
        ([*decodes(130), prompt(99, 512)], Form(192, 16, 512)),
        ([*decodes(193), prompt(99, 513)], Form(200, 16, 576)),
        ([*decodes(1), prompt(99, 2000)], Form(16, 16, 2048)),
    ],
    ids=lambda value: str(value) if isinstance(value, Form) else len(value),
)
def test_a_step_takes_the_smallest_form_that_it_fits_into(slices, form):
    columns, launch = described(slices)

    assert FORMS.find(launch, columns) == form


@pytest.mark.parametrize(
    "slices",
    [
        decodes(201),
        [prompt(1, 577)],
        [prompt(number, 8) for number in range(17)],
        [*decodes(2), Slice(9, 0, 8, 0, True)],
        [Slice(9, 0, 1, 1, False), *decodes(2)],
    ],
    ids=["decodes", "rows", "prompts", "logits of a prompt", "a chunk of one row"],
)
def test_what_fits_no_form_is_launched_one_by_one(slices):
    columns, launch = described(slices)

    assert FORMS.find(launch, columns) is None


def test_angles_of_the_host_go_with_decodes_alone():
    angles = (Rotation(np.zeros((1, 2)), np.zeros((1, 2))),)
    columns = Columns.poisoned(9)
    for slices, form in ((decodes(1), Form(1)), ([prompt(1, 20)], None)):
        launch = describe(slices, [0], columns, {}).launch(angles)

        assert FORMS.find(launch, columns) == form


def test_a_padded_step_has_the_same_slices_with_empty_ones_between_and_behind():
    slices = [*decodes(2), prompt(7, 5), prompt(8, 4, draws=False), prompt(9, 6)]
    columns, launch = described(slices, capacity=9)

    gap = pad(columns, launch, Form(4, 5, 30))

    assert columns.rows.tolist() == [0, 7, -1, -1, 14, 21, 28, -1, -1]
    assert columns.starts.tolist() == [40, 41, 0, 0, 3, 3, 3, 0, 0]
    assert columns.stops.tolist() == [41, 42, 0, 0, 8, 7, 9, 0, 0]
    assert columns.draws.tolist() == [41, 42, -1, -1, 8, -1, 9, -1, -1]
    assert columns.bounds.tolist() == [0, 1, 2, 3, 4, 9, 13, 19, 19, 19]
    assert columns.wanted.tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 6, 6]
    assert gap.place([0, 1, 2, 3]) == [0, 1, 4, 5]
    assert gap.close(np.arange(9)).tolist() == [0, 1, 4, 5, 6, 7, 8]


def test_padded_decodes_stay_in_front():
    columns, launch = described(decodes(3), capacity=8)

    pad(columns, launch, Form(8))

    assert columns.rows.tolist() == [0, 7, 14, *[-1] * 5]
    assert columns.stops.tolist() == [41, 42, 43, *[0] * 5]
    assert columns.bounds.tolist() == columns.wanted.tolist() == list(range(9))


def test_a_step_that_fills_its_form_has_no_gap():
    columns, launch = described([*decodes(2), prompt(5, 8)], capacity=4)

    gap = pad(columns, launch, Form(2, 1, 8))

    assert gap.close(np.arange(3)).tolist() == [0, 1, 2]
    assert Gap().place([4]) == [4]
    assert columns.bounds[:4].tolist() == [0, 1, 2, 10]


def test_the_launch_that_is_captured_has_room_for_everything():
    launch = Form(16, 4, 128).launch(num_rotations=2)

    assert (launch.slices, launch.rows, launch.wanted, launch.num_decodes) == (20, 144, 20, 16)
    assert len(launch.prefills) == 4
    assert launch.rotations == (None, None)
    assert Form(16).launch(0).is_decode


def test_a_step_whose_logits_are_revised_has_a_form_of_its_own():
    columns, _ = described(decodes(2))
    launch = describe(decodes(2), [0, 1], columns, {}).launch((None,), revises=True)

    form = FORMS.find(launch, columns)

    assert form == Form(2, revises=True)
    assert form.launch(1).revises


def test_small_models_have_more_rows_to_be_captured_and_all_have_those_that_come_beside_decodes():
    assert most_prompt_rows(24, 494_000_000) > 2000
    assert most_prompt_rows(28, 7_600_000_000) == 1024


@pytest.mark.parametrize("requests", [1, 3, 16, 17, 256, 1000])
def test_forms_serve_every_number_of_decodes_up_to_256(requests):
    forms = Forms(requests, 0)
    most = min(requests, 256)

    for count in range(1, most + 1):
        columns, launch = described(decodes(count))
        form = forms.find(launch, columns)
        assert form is not None
        assert count <= form.decodes <= max(count * 2, 8)
    assert max(form.decodes for form in forms.at_start) == most


def test_every_form_that_a_step_may_take_is_known_at_the_start_or_among_the_others():
    known = {*FORMS.at_start, *FORMS.others}

    assert len(known) == len(FORMS.at_start) + len(FORMS.others)
    for count in (0, 1, 16, 17, 64, 150, 200):
        for prompts in (0, 1, 2, 16):
            for length in (2, 30, 36):
                slices = [*decodes(count), *(prompt(250 + n, length) for n in range(prompts))]
                columns, launch = described(slices) if slices else (None, None)
                form = FORMS.find(launch, columns) if slices else None
                assert form is None or form in known


@pytest.mark.parametrize("revises", [False, True])
def test_what_is_not_captured_yet_fits_a_form_of_the_start(revises):
    for form in FORMS.others:
        decodes = [n for n in (64, 200) if n >= form.decodes]

        stand_ins = FORMS.stand_ins(replace(form, revises=revises))

        rows = min(rows for rows in PROMPT_ROWS if rows >= form.prompt_rows)
        assert stand_ins == tuple(Form(n, 16, rows, revises=revises) for n in decodes)
        assert {replace(stand_in, revises=False) for stand_in in stand_ins} <= {*FORMS.at_start}


def test_prompts_alone_that_are_longer_than_any_beside_decodes_have_no_stand_in():
    small_model = Forms(requests=200, most_prompt_rows=2600)

    assert Form(0, 1, 2560) in small_model.others
    assert small_model.stand_ins(Form(0, 1, 2560)) == ()
    assert FORMS.stand_ins(Form(16)) == ()


def test_prompts_alone_are_computed_behind_a_stand_in_s_empty_decodes():
    columns, launch = described([prompt(0, 5), prompt(1, 4)], capacity=12)

    gap = pad(columns, launch, Form(3, 3, 16))

    assert columns.rows[:6].tolist() == [-1, -1, -1, 0, 7, -1]
    assert columns.bounds[:7].tolist() == [0, 1, 2, 3, 8, 12, 12]
    assert columns.wanted[:7].tolist() == [0, 1, 2, 3, 4, 5, 5]
    assert gap.close(np.arange(5)).tolist() == [3, 4]


def test_at_the_start_the_form_with_most_rows_is_the_first():
    rows = [form.decodes + form.prompt_rows for form in FORMS.at_start]

    assert rows == sorted(rows, reverse=True)
    assert FORMS.at_start[0] == Form(200, 16, 2048)
    assert Form(0, 16, 576) in FORMS.at_start
    assert Forms(4, 0).others == ()
