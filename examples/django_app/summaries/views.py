"""The views of the example."""

from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from smartbatch import JobNotFound
from smartbatch.integrations.django import get_client


@require_GET
def form(request):
    return render(request, "summaries/form.html")


@require_POST
def start(request):
    """Store all lines as a job, which outlives this process; a few lines are sent in real time."""
    texts = [line.strip() for line in request.POST["texts"].splitlines() if line.strip()]
    if not texts:
        return render(request, "summaries/form.html", {"error": "Write at least one line."}, status=400)
    job = get_client().submit_batch([f"Summarise: {text}" for text in texts], strategy="threshold")
    return redirect("show", job_id=job.id)


@require_GET
def show(request, job_id):
    job = stored(job_id)
    status = job.status()
    results = list(job.results(wait=False)) if status.done else []
    return render(request, "summaries/job.html", {"status": status, "results": results})


@require_GET
def progress(_request, job_id):
    """Return the progress, which the page of a job requests once a second."""
    status = stored(job_id).status()
    return JsonResponse({"finished": status.finished, "total": status.total, "done": status.done})


@csrf_exempt
@require_POST
def ask(request):
    """Answer one question while the user waits, within the time limit of the web request."""
    return HttpResponse(get_client().submit_urgent(request.body.decode()).result().text)


def may_see_jobs(request):
    """Decide who may view the dashboard, and who may act there."""
    if request.user.is_superuser:
        return "all"
    return "read" if request.user.has_perm("smartbatch.view_storedjob") else None


def stored(job_id):
    try:
        return get_client().job(job_id)
    except JobNotFound as error:
        raise Http404 from error
