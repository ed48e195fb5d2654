from trinity.common.workflows import WORKFLOWS, Workflow


@WORKFLOWS.register_module("sing_workflow")
class SingWorkflow(Workflow):
    """One response; its reward is the fraction of its characters that are vowels."""

    def __init__(self, task, model, auxiliary_models=None):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.question = task.raw_task["question"]

    def run(self):
        messages = [{"role": "user", "content": self.question}]
        (response,) = self.model.chat(messages, temperature=self.task.rollout_args.temperature)
        text = response.response_text.lower()
        response.reward = sum(character in "aeiou" for character in text) / max(len(text), 1)
        return [response]
