"""What runs the suite elsewhere, checked without an engine or a cluster: image, compose, Kubernetes, the documents."""
