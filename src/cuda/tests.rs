//! What can be tested without a GPU.
