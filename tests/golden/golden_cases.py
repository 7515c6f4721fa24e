"""All cases, in one table."""

from __future__ import annotations

import cases_commands
import cases_data
import cases_imputers
import cases_measures
import cases_models
import cases_names
import cases_search
from golden_record import CASES as CASES

MODULES = (cases_measures, cases_imputers, cases_models, cases_data, cases_commands, cases_search, cases_names)
