def budget_rows(cases):
    return []
