def vowels(completions, **kwargs):
    """Fractions of the characters that are vowels."""
    texts = [completion[0]["content"].lower() for completion in completions]
    return [sum(character in "aeiou" for character in text) / max(len(text), 1) for text in texts]
