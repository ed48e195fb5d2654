"""Answers the questions of a run through Strop Studio's HTTP interface, by a rule: the shorter a response, the better.

    python examples/pipelines/answer_questions.py 'http://127.0.0.1:8765/?token=...' examples/human-feedback

The first argument is the URL that `strop studio` prints, the second one the run's name in Studio's list. Replace
`score` by your own tool, such as a form or a labeling service.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import httpx


def main() -> None:
    """Answer questions until Studio ends."""
    url, run = sys.argv[1:]
    with httpx.Client(base_url=url.partition("?")[0], follow_redirects=True) as studio:
        studio.get(url).raise_for_status()  # the token becomes a cookie
        while True:
            try:
                waiting = (
                    studio.get("/rate/questions", params={"run": run}).raise_for_status().json()["waiting"]
                )
            except httpx.ConnectError:
                return
            for question in waiting:
                answered = studio.post(
                    "/rate/answer", json={"run": run, "id": question["id"], **answer(question)}
                )
                print(question["group"], answered.json())
            time.sleep(0.2)


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to one question; an empty one skips it."""
    scores = {response["index"]: score(response["text"]) for response in question["responses"]}
    if question["question"] == "score":
        return {"scores": scores}
    better, worse = sorted(scores, key=scores.__getitem__, reverse=True)
    return {"chosen": better, "rejected": worse}


def score(text: str) -> float:
    """A person's judgment, from 0 to 1: here, 1 for no characters and 0 for 1000."""
    return max(0.0, 1 - len(text) / 1000)


if __name__ == "__main__":
    main()
