"""What all of a comparison rests on: the result model, views of streams, differences between rows, bisection."""
