"""Authentication and authorization of every request: sign-in, sessions, form tokens, response headers.

`guard` runs before each route and sets `g.identity`. `identities` and `oidc` find out whose token a request carries,
`sessions` and `sign_in` handle browsers, `rights` decides which controls a page offers. The store (`kvs_api`) makes
the final decision about every command; nothing here grants a right that the store would refuse.
"""
