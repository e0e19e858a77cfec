"""Model families: what is known of them beside their graphs and their weights."""
