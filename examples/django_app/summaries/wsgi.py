"""For servers such as gunicorn: ``gunicorn summaries.wsgi``."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "summaries.settings")
application = get_wsgi_application()
