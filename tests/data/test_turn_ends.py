"""The end of a trained turn in rendered text, by hand."""

from __future__ import annotations

import pytest

from strop.data.encoding.turn_encoder import TurnEnds

EOS, IM_END, USER = "<|endoftext|>", "<|im_end|>", "<|user|>"


@pytest.mark.parametrize(
    ("ends", "turn", "following", "trained", "rest"),
    [
        ([EOS], f"hi{EOS}", "", f"hi{EOS}", ""),
        (
            [EOS],
            f"hi{EOS}\n",
            "next",
            f"hi{EOS}",
            "\nnext",
        ),  # templates write a line break after the end mark
        ([EOS], f"hi{EOS}{EOS}\n", "next", f"hi{EOS}", "\nnext"),  # the answer has an end token of its own
        ([EOS], f"hi{EOS} {EOS}", "", f"hi{EOS}", ""),
        ([EOS], f"hi{EOS}", f"{EOS}\nnext", f"hi{EOS}", "\nnext"),  # the second one is behind the mark
        ([EOS], f"a{EOS}b{EOS}", "", f"a{EOS}b{EOS}", ""),
        ([EOS], "hi", f"{EOS}\n", f"hi{EOS}", "\n"),  # the mark excludes the end token
        ([EOS], "hi", f"\n{EOS}", f"hi\n{EOS}", ""),
        ([EOS, IM_END], f"hi{IM_END}\n", "next", f"hi{IM_END}", "\nnext"),  # eos_token is another one
        ([EOS, IM_END], f"hi{IM_END}\n{EOS}", "", f"hi{IM_END}", f"\n{EOS}"),  # sampling stops at the first
        (
            [EOS, USER],
            "hi",
            f"{USER}\nnext",
            f"hi{USER}",
            "\nnext",
        ),  # the header of the next turn ends a turn
        ([EOS, USER], "hi\n", f"{USER}\nnext", f"hi\n{USER}", "\nnext"),
        ([EOS], "hi\n", f"{USER}\nnext", "hi\n", f"{USER}\nnext"),
        (
            [EOS],
            f"hi{IM_END}\n",
            "next",
            f"hi{IM_END}",
            "\nnext",
        ),  # special, and sampling does not stop at it
        ([], "hi", "next", "hi", "next"),
    ],
)
def test_the_end_of_a_turn(ends, turn, following, trained, rest):
    text = f"<|assistant|>{turn}{following}"
    start = len("<|assistant|>")
    found = TurnEnds(ends, [EOS, IM_END, USER]).of_turn(text, start, start + len(turn))
    assert text[start : found.stop] == trained
    assert text[found.resume :] == rest
    assert found.has_end_token == trained.endswith(tuple(ends))


@pytest.mark.parametrize(
    ("ends", "text", "closed"),
    [
        ([EOS], "hi", f"hi{EOS}"),
        ([EOS], f"hi{EOS}", f"hi{EOS}"),
        ([EOS], f"hi{EOS}\n", f"hi{EOS}"),
        ([EOS], f"hi{EOS}{EOS}", f"hi{EOS}"),
        ([EOS], f"a{EOS}b", f"a{EOS}b{EOS}"),
        ([EOS], "", EOS),
        ([EOS, IM_END], f"hi{IM_END}", f"hi{IM_END}"),
        ([EOS, IM_END], "hi", f"hi{EOS}"),
        ([EOS], f"hi{IM_END}\n", f"hi{IM_END}\n{EOS}"),
        ([], "hi", "hi"),
    ],
)
def test_a_text_without_a_template_has_one_end_token(ends, text, closed):
    assert TurnEnds(ends, ()).closed(text) == closed


@pytest.mark.parametrize(
    ("text", "start"), [(f"{USER}\nhi", USER), (f"\n{USER}", f"\n{USER}"), ("hi", ""), ("", "")]
)
def test_the_end_token_at_the_start_of_a_text(text, start):
    assert TurnEnds([EOS, USER], ()).at_start(text) == start
