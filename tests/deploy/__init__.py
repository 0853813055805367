"""What runs the suite elsewhere, checked without an engine or a cluster: the image, compose, Kubernetes, the documents."""
