#!/bin/bash
# The readiness probe.
#@settings
#@user
#@joined
_joined
