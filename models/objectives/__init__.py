"""What a network learns: preconditioning, noise, weights and loss as separate units."""
