"""Workflows that Trinity registers by name and that are classes of its package, trinity-rft."""

from __future__ import annotations

from collections.abc import Mapping

PACKAGED: Mapping[str, str] = {
    "math_rm_workflow": "the package rm-gallery, for its reward",
    "math_ruler_workflow": "an auxiliary model, which compares the responses of a group",
    "math_trainable_ruler_workflow": "",
    "math_based_model_workflow": "",
    "rubric_judge_workflow": "an auxiliary model, which judges",
    "rubric_judge_openai_workflow": "the API of a judge",
    "tool_call_workflow": "",
    "toolcall_workflow": "",
    "sudoku_workflow": "",
    "thinking_budget_workflow": "",
    "agentscope_workflow_adapter": "the package agentscope",
    "agentscope_workflow_adapter_v1": "the package agentscope",
    "agentscope_react_workflow": "the package agentscope",
    "as_react_workflow": "the package agentscope",
    "agentscope_react_math_workflow": "the package agentscope",
    "agentscopev0_react_math_workflow": "the package agentscope",
    "agentscope_reactv2_math_workflow": "the package agentscope",
    "agentscope_v1_react_search_workflow": "the package agentscope",
    "email_search_workflow": "the package agentscope, and a database of emails",
    "bcp_simple_react_workflow": "a search index of BrowseComp-Plus",
    "alfworld_workflow": "the package alfworld",
    "alfworld_workflow_v2": "the package alfworld",
    "step_wise_alfworld_workflow": "the package alfworld",
    "RAFT_alfworld_workflow": "the package alfworld",
    "RAFT_reflect_alfworld_workflow": "the package alfworld",
    "frozen_lake_workflow": "the package gymnasium",
    "sciworld_workflow": "the package scienceworld, and Java",
    "webshop_workflow": "the package web_agent_site of WebShop",
    "intercode_sql_workflow": "the package intercode",
}
"""Needs of each workflow besides trinity-rft. A configuration with one is read; `--check` says what is missing."""


TRAINS_ON_VERDICTS = ("math_trainable_ruler_workflow",)
"""Workflows whose experiences are the rollouts of a task and the replies in which the model judged them."""


def package_fault(name: str) -> str | None:
    """Why a workflow of Trinity's package cannot run; None for any other name."""
    if name not in PACKAGED:
        return None
    needs = f", which needs {PACKAGED[name]}" if PACKAGED[name] else ""
    return (
        f"rollout.workflow trinity: {name} is a class of the package trinity-rft{needs}. Strop has none of its files: "
        "copy the file of the class and name it as file.py:Class, or write its episode for Strop, as a class with "
        "`async def run(self, task, chat)`."
    )
