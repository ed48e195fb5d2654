"""Ledger rows of Trinity's `data_processor` and `service` sections: pipelines that prepare tasks and rollouts."""

from __future__ import annotations

from strop.dialects.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    always,
    mapped,
    no_effect,
    refused,
    unstated_defaults,
    versions,
)
from strop.dialects.ledger.value_types import BOOLEAN, MAPPING, MAPPING_LIST, STRING, nullable
from strop.dialects.trinity import experience_operators, task_operators

_TASKS, _EXPERIENCES = task_operators.TASKS, "data_processor.experience_pipeline"
_BUFFERS = "rollouts go from the explorer to the buffer of the trainer only; remove it"


def _has_no_operators(foreign: ForeignValues) -> str | None:
    return None if foreign[f"{_EXPERIENCES}.operators"] else "the pipeline has no operators"


ROWS: tuple[KeyMapping, ...] = (
    *experience_operators.SERVICE_ROWS,
    *task_operators.ROWS,
    *experience_operators.ROWS,
    *unstated_defaults(
        *versions(
            *(
                mapped(section, None, note="each key has a row of its own", value_type=nullable(MAPPING))
                for section in ("data_processor", _TASKS, _EXPERIENCES, "service", "service.data_juicer")
            ),
            *(
                mapped(
                    f"{section}.operators", None, note="each item has rows", value_type=nullable(MAPPING_LIST)
                )
                for section in (_TASKS, _EXPERIENCES)
            ),
            no_effect(f"{_EXPERIENCES}.save_input", True, "rollouts are always recorded", value_type=BOOLEAN),
            no_effect(
                f"{_EXPERIENCES}.input_save_path",
                None,
                "rollouts are recorded in the run folder",
                value_type=nullable(STRING),
            ),
            *(
                refused(
                    f"{_EXPERIENCES}.{name}.*",
                    UNSET,
                    _BUFFERS,
                    supported=always,
                    inactive=_has_no_operators,
                )
                for name in ("inputs", "output")
            ),
            since="0.3",
        )
    ),
    *task_operators.LATER_ROWS,
)
