"""What users gave is opened and worked on within bounds."""
