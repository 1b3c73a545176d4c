"""Ways of giving requests to several workers, against each other, on a virtual clock."""
