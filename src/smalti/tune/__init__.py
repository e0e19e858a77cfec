"""Search among schedules by measuring few of them."""
