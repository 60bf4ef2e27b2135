"""The public names: `__init__.py` imports them lazily from here, type checkers read them here."""

import typing

from .architectures.own_attention import register_architecture as register_architecture
from .diagnostics import diagnose as diagnose
from .errors import GraphAttentionError as GraphAttentionError
from .interface.functional import MultiheadAttention as MultiheadAttention
from .interface.functional import attention as attention
from .loading import from_pretrained as from_pretrained
from .loading.filter_files import FILTERS_NAME as FILTERS_NAME
from .loading.filter_files import load_filters as load_filters
from .loading.filter_files import save_filters as save_filters
from .loading.peft import load_peft as load_peft
from .loading.peft import peft_modules as peft_modules
from .loading.peft_method import GraphFilterConfig as GraphFilterConfig
from .model.filters import filter_parameters as filter_parameters
from .model.filters import graph_filters as graph_filters
from .model.filters import is_patched as is_patched
from .model.report import report as report
from .model.report import supported as supported
from .model.training import freeze_base as freeze_base
from .model.training import optimizer_groups as optimizer_groups
from .patching.patch import check as check
from .patching.patch import patch_model as patch_model
from .patching.patch import unpatch_model as unpatch_model
from .sharing import model_card as model_card
from .sharing import push_to_hub as push_to_hub
from .sharing import save_repository as save_repository
from .trainer import TrainerMixin as TrainerMixin
from .variants import GraphFilter as GraphFilter
from .variants import VariantConfig as VariantConfig
from .variants import register as register
from .variants import setting as setting
from .variants import variant_configs as variant_configs
from .version import __version__ as __version__

# The config classes come from the registry of variants, which no type checker can read.
def __getattr__(name: str) -> typing.Any: ...
