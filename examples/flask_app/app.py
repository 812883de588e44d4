"""A form that starts a job, a page that shows its progress, and its results.

    flask --app app run

The model is the embedded provider, which needs no key; ``FLASK_SMARTBATCH_MODEL`` selects another one. If the
variable ``DASHBOARD_PASSWORD`` is set, there is a dashboard at ``/smartbatch/dashboard/``.
"""

import os
from secrets import compare_digest

from flask import Flask, Response, abort, redirect, render_template, request, url_for

from smartbatch import JobNotFound
from smartbatch.integrations.flask import Smartbatch, blueprint, current_smartbatch, dashboard_blueprint

app = Flask(__name__)
app.config.update(SMARTBATCH_MODEL="sim:demo", SMARTBATCH_STORE="jobs.db", SMARTBATCH_WEB_TIMEOUT="25s")
app.config.from_prefixed_env()
Smartbatch(app)


def access(environ):
    """Admit users with the password in ``DASHBOARD_PASSWORD``; if it is not set, there is no dashboard."""
    given, password = request.authorization, os.environ.get("DASHBOARD_PASSWORD")
    if not password:
        return None
    if given is None or not compare_digest(given.password or "", password):
        abort(Response("Who are you?", 401, {"WWW-Authenticate": 'Basic realm="jobs"'}))
    environ["REMOTE_USER"] = given.username
    return "all"


app.register_blueprint(blueprint)
app.register_blueprint(dashboard_blueprint(access))


@app.get("/")
def form():
    return render_template("form.html")


@app.post("/jobs")
def start():
    """Store all lines as a job, which outlives this process; a few lines are sent in real time."""
    texts = [line.strip() for line in request.form["texts"].splitlines() if line.strip()]
    if not texts:
        return render_template("form.html", error="Write at least one line."), 400
    job = current_smartbatch.submit_batch([f"Summarise: {text}" for text in texts], strategy="threshold")
    return redirect(url_for("show", job_id=job.id), 303)


@app.get("/jobs/<job_id>")
def show(job_id):
    job = stored(job_id)
    status = job.status()
    results = list(job.results(wait=False)) if status.done else []
    return render_template("job.html", status=status, results=results)


@app.get("/jobs/<job_id>/progress")
def progress(job_id):
    """Return the progress, which the page of a job requests once a second."""
    status = stored(job_id).status()
    return {"finished": status.finished, "total": status.total, "done": status.done}


@app.post("/ask")
def ask():
    """Answer one question while the user waits, within the time limit of the web request."""
    return current_smartbatch.submit_urgent(request.get_data(as_text=True)).result().text


def stored(job_id):
    try:
        return current_smartbatch.job(job_id)
    except JobNotFound:
        abort(404)
