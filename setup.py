"""Everything stands in setup.cfg; this file lets tools find it."""

from setuptools import setup

setup()
