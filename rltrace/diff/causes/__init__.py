"""What kind of difference two matched rows show, and how their inputs are known to match."""
