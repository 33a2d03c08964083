"""Images: decoded, cut, resampled, jittered; and those that cannot be."""
