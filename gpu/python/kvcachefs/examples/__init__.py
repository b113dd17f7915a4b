# SPDX-License-Identifier: Apache-2.0
"""Example programs: python3 -m kvcachefs.examples.NAME MOUNT"""
