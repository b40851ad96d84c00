from host_agent.pipeline.groups import PipelineGroups as PipelineGroups
from host_agent.pipeline.groups import pipeline_groups as pipeline_groups
from host_agent.pipeline.message_driven import ScheduleMessageDriven as ScheduleMessageDriven
from host_agent.pipeline.pipeline import Pipeline as Pipeline
