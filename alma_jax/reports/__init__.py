"""From finished runs to tables, figures, findings and a page. Imports no jax."""
