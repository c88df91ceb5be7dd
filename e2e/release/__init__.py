"""`make release VERSION=x.y.z`: what users install, made of the commit, checked and tried.

changelog     every place that names the version names this one
contents      the rules: what a wheel, an sdist and a chart hold, and what they never do
building      makes them, equal bytes each time
installing    installs each extra in a clean environment, and runs what it brings

build-constraints.txt pins what builds the wheel, because the wheel names it.
"""
