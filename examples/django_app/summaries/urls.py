"""The pages of the example, its health page, the dashboard, and the admin with its jobs."""

from django.contrib import admin
from django.urls import include, path

from smartbatch.integrations.django.urls import dashboard_urls
from summaries import views

urlpatterns = [
    path("", views.form, name="form"),
    path("jobs", views.start, name="start"),
    path("jobs/<job_id>", views.show, name="show"),
    path("jobs/<job_id>/progress", views.progress, name="progress"),
    path("ask", views.ask, name="ask"),
    path("smartbatch/dashboard/", include(dashboard_urls(views.may_see_jobs))),
    path("smartbatch/", include("smartbatch.integrations.django.urls")),
    path("admin/", admin.site.urls),
]
