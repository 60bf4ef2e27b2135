"""The public names: `__init__.py` imports them lazily from here, type checkers read them here."""

import typing

from .card import model_card as model_card
from .diagnostics import diagnose as diagnose
from .errors import GraphAttentionError as GraphAttentionError
from .filter_files import FILTERS_NAME as FILTERS_NAME
from .filter_files import load_filters as load_filters
from .filter_files import save_filters as save_filters
from .filters import filter_parameters as filter_parameters
from .filters import graph_filters as graph_filters
from .filters import is_patched as is_patched
from .functional import attention as attention
from .loading import from_pretrained as from_pretrained
from .multihead import MultiheadAttention as MultiheadAttention
from .own_attention import register_architecture as register_architecture
from .patching import check as check
from .patching import patch_model as patch_model
from .patching import unpatch_model as unpatch_model
from .peft import load_peft as load_peft
from .peft import peft_modules as peft_modules
from .reporting import report as report
from .reporting import supported as supported
from .repository import push_to_hub as push_to_hub
from .repository import save_repository as save_repository
from .training import freeze_base as freeze_base
from .training import optimizer_groups as optimizer_groups
from .variants import GraphFilter as GraphFilter
from .variants import VariantConfig as VariantConfig
from .variants import register as register
from .variants import setting as setting
from .variants import variant_configs as variant_configs
from .version import __version__ as __version__

# The config classes come from the registry of variants, which no type checker can read.
def __getattr__(name: str) -> typing.Any: ...
