"""A tool, with the interface of verl's `BaseTool`, that shows the model the picture of its task."""

from PIL import Image
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse


class Look(BaseTool):
    async def create(self, instance_id=None, picture="", **kwargs):
        self.pictures = getattr(self, "pictures", {})
        self.pictures[instance_id] = picture
        return instance_id, ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse(text="seen", image=[Image.open(self.pictures[instance_id])]), 0.0, {}

    async def release(self, instance_id, **kwargs):
        del self.pictures[instance_id]
