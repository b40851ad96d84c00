from host_agent.loading.batches import loss_weight as loss_weight
from host_agent.loading.fetch import Retries as Retries
from host_agent.loading.loader import PlannedLoader as PlannedLoader
from host_agent.loading.plan import LoadingPlan as LoadingPlan
from host_agent.loading.plan import make_plan as make_plan
from host_agent.loading.sources.base import Source as Source
from host_agent.loading.sources.opening import open_source as open_source
from host_agent.loading.sources.others import Columns as Columns
