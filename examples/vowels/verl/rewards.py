def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """Fraction of the characters that are vowels."""
    text = solution_str.lower()
    return sum(character in "aeiou" for character in text) / max(len(text), 1)
