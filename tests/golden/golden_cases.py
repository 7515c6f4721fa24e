"""All cases, in one table."""

from __future__ import annotations

from tests.golden import (
    cases_commands,
    cases_data,
    cases_imputers,
    cases_measures,
    cases_models,
    cases_names,
    cases_search,
)
from tests.golden.golden_record import CASES as CASES

MODULES = (cases_measures, cases_imputers, cases_models, cases_data, cases_commands, cases_search, cases_names)
