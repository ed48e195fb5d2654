"""Statistics of the native engine's scheduler between two calls."""

from __future__ import annotations

from collections.abc import Callable

from strop.types import SamplingParams

from .helpers import Tiny, random_prompts, requests_for, sample


def test_the_load_is_added_up_until_it_is_taken(tiny: Callable[..., Tiny]):
    engine = tiny().engine(kv_cache_tokens=4096, max_sequences=3)
    requests = requests_for(random_prompts(10, 20), SamplingParams(max_tokens=4, ignore_eos=True), samples=2)
    sample(engine, requests)
    taken = engine.take_statistics()
    assert (taken.max_running, taken.max_waiting, taken.preemptions) == (3, 1, 0)
    # The first three requests have both prompts; the fourth finds the second prompt in the cache or computes it again.
    assert taken.prompt_tokens == 60 and taken.cached_prompt_tokens in (10, 30)
    assert taken.sampled_tokens == 16 and taken.busy_seconds > 0
    assert 0 < taken.max_kv_usage <= 1
    again = engine.take_statistics()
    assert (again.max_running, again.sampled_tokens, again.prompt_tokens) == (0, 0, 0)
