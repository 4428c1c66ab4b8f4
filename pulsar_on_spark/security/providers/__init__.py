"""The built-in checks of credentials: `token`, `basic`, `certificate` and `openid`, one method each."""
