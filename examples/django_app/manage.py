"""A form that starts a job, a page that shows its progress, and its results.

    python manage.py migrate
    python manage.py runserver

The model is the embedded provider, which needs no key; the variable ``MODEL`` selects another one.
"""

import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "summaries.settings")
execute_from_command_line(sys.argv)
