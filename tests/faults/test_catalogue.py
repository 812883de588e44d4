"""The failure catalogue, sections B (what concerns batches), C, and some of E, H and I: which tests hold
each row.

A row that is about real-time calls as well names the tests of theirs, too. Whole clients over HTTP are in
this folder; see :mod:`tests.faults.world`.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent

CATALOGUE: dict[str, tuple[str, tuple[str, ...]]] = {
    "B4": (
        "a create whose answer is lost is sent once",
        (
            "faults/test_faults_network.py::test_b4_a_create_whose_answer_is_lost_is_sent_once_and_found",
            "providers/test_batch_creates.py::test_a_lost_answer_leaves_it_open_and_is_not_asked_for_again",
        ),
    ),
    "B9": (
        "truncated bodies, with and without a length",
        (
            "faults/test_faults_network.py::test_b9_results_cut_anywhere_lose_no_item",
            "providers/test_conformance_network.py::test_a_cut_body_is_never_an_answer",
        ),
    ),
    "B11": (
        "gzip bombs and endless bodies",
        (
            "faults/test_faults_network.py::test_b11_a_bomb_among_the_results_fills_no_memory",
            "providers/test_transport.py::test_a_gzip_bomb_takes_no_more_memory_than_the_cap",
            "providers/test_transport.py::test_an_endless_chunked_body_is_capped",
        ),
    ),
    "B12": (
        "413, limits of gateways, and refusals while the body is sent",
        (
            "faults/test_faults_network.py::test_b12_an_input_too_large_for_the_server_goes_in_halves",
            "providers/test_batch_creates.py::test_an_early_refusal_is_heard_while_the_body_is_still_sent",
            "faults/test_faults_refused_batches.py::"
            "test_a_batch_above_the_limits_of_a_server_goes_in_halves_and_later_jobs_are_cut_so",
            "faults/test_faults_refused_batches.py::test_a_413_of_a_gateway_is_a_limit_as_well",
            "faults/test_faults_refused_batches.py::test_one_request_that_is_still_too_large_fails_alone",
        ),
    ),
    "B13": (
        "a web page instead of the provider",
        (
            "faults/test_faults_network.py::test_b13_a_page_to_sign_in_is_never_taken_for_the_provider",
            "providers/test_conformance_answers.py::test_a_web_page_is_not_the_provider",
        ),
    ),
    "B15": (
        "redirects elsewhere",
        (
            "faults/test_faults_network.py::"
            "test_b15_only_downloads_follow_a_redirect_to_another_host_and_without_the_key",
            "providers/test_conformance_answers.py::test_redirects_are_not_followed",
            "faults/test_faults_files.py::test_results_on_another_server_are_fetched_without_the_key",
            "faults/test_faults_files.py::test_a_redirect_within_the_server_is_followed_with_the_key",
            "faults/test_faults_files.py::test_redirects_without_an_end_are_an_error_and_nothing_is_lost",
        ),
    ),
    "B16": (
        "hours without a network",
        (
            "faults/test_faults_network.py::"
            "test_b16_after_eight_hours_without_a_network_polling_goes_on_without_a_burst",
        ),
    ),
    "C1": (
        "every form of Retry-After",
        (
            "faults/test_faults_answers.py::test_c1_no_form_of_retry_after_is_obeyed_blindly",
            "providers/test_limit_headers.py::test_every_form_of_retry_after_is_read_or_refused",
            "providers/test_limit_headers.py::test_no_retry_after_can_raise_or_leave_its_range",
            "core/limits/test_retry.py::test_retry_after_is_a_minimum",
        ),
    ),
    "C2": (
        "429 that means: no money left",
        (
            "faults/test_faults_answers.py::test_c2_without_money_nothing_more_is_sent_and_the_queue_is_kept",
            "providers/test_error_table.py::test_each_error_has_its_kind",
        ),
    ),
    "C3": (
        "one poisonous item",
        (
            "faults/test_faults_answers.py::test_c3_a_poisonous_item_fails_alone_and_delays_nobody",
            "realtime/test_retries.py::test_a_request_that_always_fails_delays_no_other",
            "realtime/test_retries.py::test_many_requests_that_always_fail_delay_no_other",
        ),
    ),
    "C4": (
        "200 with no usable answer",
        (
            "faults/test_faults_answers.py::test_c4_every_shape_of_an_answer_has_a_typed_outcome",
            "providers/test_openai_errors.py::test_an_error_object_in_a_success_is_an_error",
            "providers/test_anthropic_errors.py::test_a_success_that_is_no_message_is_an_error",
        ),
    ),
    "C5": (
        "answers of other requests: at least 95 of 100 seen",
        (
            "faults/test_faults_results.py::"
            "test_c5_a_suspicion_that_answers_were_exchanged_is_told_once_and_nothing_is_paid_again",
            "faults/test_faults_results.py::"
            "test_c5_rows_in_another_script_are_not_paid_twice_where_counts_follow_characters",
            "faults/test_faults_results.py::test_c5_a_few_requests_in_another_script_are_not_asked_for_again",
            "core/batching/test_crosscheck.py::test_at_least_95_in_100_are_seen_where_estimates_fit",
        ),
    ),
    "C6": (
        "embeddings out of order, missing, misshapen",
        (
            "faults/test_faults_answers.py::"
            "test_c6_vectors_out_of_order_missing_extra_misshapen_find_their_texts_or_none",
            "properties/test_vectors.py::test_each_vector_finds_its_text_in_any_order",
            "properties/test_vectors.py::test_any_broken_answer_is_an_error_or_right",
            "properties/test_vectors.py::test_a_number_that_is_not_finite_is_refused",
        ),
    ),
    "C7": (
        "packed calls with answers missing, doubled, renumbered (batches are never packed)",
        (
            "core/batching/test_packing.py::test_a_thousand_prompts_under_each_damage",
            "realtime/test_packed_calls.py::test_a_thousand_prompts_a_hundred_hostile_under_all_damages",
        ),
    ),
    "C8": (
        "results out of order",
        ("faults/test_faults_results.py::test_c8_results_in_any_order_find_their_requests",),
    ),
    "C9": (
        "missing ids",
        (
            "faults/test_faults_results.py::test_c9_ids_that_are_only_late_are_waited_for_and_not_sent_again",
            "faults/test_faults_results.py::test_c9_ids_that_stay_away_are_sent_again_and_no_others",
            "faults/test_faults_results.py::test_c9_ids_that_never_come_end_as_failures",
            "faults/test_faults_cut_downloads.py::"
            "test_c9_downloads_that_end_in_the_middle_of_a_line_are_fetched_until_they_are_whole",
            "faults/test_faults_cut_downloads.py::"
            "test_c9_a_download_without_its_last_newline_may_be_cut_before_it",
            "faults/test_faults_cut_downloads.py::"
            "test_c9_a_batch_whose_results_are_cut_is_not_taken_for_a_foreign_one",
            "faults/test_faults_cut_downloads.py::test_c9_a_file_that_has_no_last_newline_each_time_is_whole",
            "faults/test_faults_cut_downloads.py::test_c9_a_download_that_looks_broken_twice_confirms_nothing",
            "faults/test_faults_results.py::test_c9_a_second_download_confirms_at_once_which_lines_are_missing",
            "faults/test_faults_results.py::test_c9_results_that_still_grow_are_fetched_until_they_are_whole",
            "faults/test_faults_cut_downloads.py::"
            "test_c9_no_more_is_written_than_the_results_of_the_batch_can_be",
            "faults/test_faults_cut_downloads.py::"
            "test_c9_what_could_be_read_is_there_while_the_rest_is_waited_for",
        ),
    ),
    "C10": (
        "unknown ids, ids of another job",
        (
            "faults/test_faults_results.py::"
            "test_c10_lines_nobody_asked_for_and_lines_of_another_job_are_delivered_to_nobody",
            "faults/test_faults_results.py::"
            "test_c9_and_c10_a_line_under_a_number_the_batch_never_had_is_nobodys",
        ),
    ),
    "C11": (
        "one id twice",
        ("faults/test_faults_results.py::test_c11_of_two_answers_under_one_id_the_first_counts",),
    ),
    "C12": (
        "broken lines",
        (
            "faults/test_faults_results.py::test_c12_a_broken_line_hurts_no_other",
            "faults/test_faults_results.py::test_c12_nor_does_a_last_line_without_an_end",
        ),
    ),
    "C13": (
        "error files, counts that do not add up, status 0",
        (
            "faults/test_faults_results.py::test_c13_a_batch_with_errors_only_or_with_both_is_read_in_full",
            "faults/test_faults_results.py::test_c13_what_is_refused_for_good_fails_with_its_reason",
            "faults/test_faults_results.py::test_c13_lines_are_believed_and_counts_are_not",
            "faults/test_faults_results.py::test_c13_no_count_is_too_absurd_to_go_on",
        ),
    ),
    "C14": (
        "expired with a part done",
        ("faults/test_faults_ends.py::test_c14_of_a_batch_that_expires_half_done_that_half_is_kept",),
    ),
    "C15": (
        "expired with nothing done",
        (
            "faults/test_faults_ends.py::"
            "test_c15_what_expires_with_nothing_done_again_and_again_ends_and_says_so",
            "faults/test_faults_ends.py::test_c15_after_one_expiry_with_nothing_done_all_goes_in_a_new_batch",
            "faults/test_faults_ends.py::test_c15_expiries_are_not_missing_results",
        ),
    ),
    "C16": (
        "pending, or being cancelled, far beyond the promise",
        (
            "faults/test_faults_ends.py::test_c16_a_batch_far_beyond_the_promise_is_told_and_waited_for",
            "faults/test_faults_ends.py::"
            "test_c16_what_replaces_a_batch_that_takes_too_long_begins_after_its_end",
            "faults/test_faults_ends.py::"
            "test_c16_a_cancelled_job_ends_as_soon_as_the_provider_says_that_its_batch_has",
            "faults/test_faults_without_batches.py::"
            "test_a_list_whose_batch_takes_longer_than_was_planned_goes_on_in_real_time",
            "faults/test_faults_without_batches.py::test_a_batch_that_is_stuck_in_its_cancel_delays_nothing",
            "faults/test_faults_without_batches.py::"
            "test_a_batch_that_never_ends_after_its_cancel_is_not_polled_for_ever",
        ),
    ),
    "C17": (
        "races of end and cancel, and cancels by others",
        (
            "faults/test_faults_ends.py::"
            "test_c17_whoever_wins_the_race_of_end_and_cancel_nothing_is_paid_twice",
            "faults/test_faults_ends.py::test_c17_hundreds_of_races_of_end_and_cancel",
            "faults/test_faults_ends.py::"
            "test_c17_a_job_that_is_cancelled_keeps_what_came_and_sends_nothing_more",
            "faults/test_faults_ends.py::"
            "test_c17_a_cancel_in_an_outage_is_sent_again_after_it_and_nothing_is_paid_twice",
            "faults/test_faults_cancelled_elsewhere.py::"
            "test_the_job_of_a_batch_that_was_cancelled_in_the_console_is_held_until_it_is_resumed",
            "faults/test_faults_cancelled_elsewhere.py::"
            "test_a_deadline_does_not_send_again_what_was_cancelled_in_the_console",
            "faults/test_faults_cancelled_elsewhere.py::test_a_batch_that_we_cancel_ourselves_holds_nothing",
        ),
    ),
    "C18": (
        "refused at once or minutes later, for some lines, a parameter or as a whole",
        (
            "faults/test_faults_ends.py::test_c18_a_batch_refused_at_validation_is_made_anew_once",
            "faults/test_faults_ends.py::test_c18_a_full_quota_of_enqueued_tokens_is_waited_for",
            "faults/test_faults_refused_batches.py::"
            "test_a_batch_that_fails_by_an_error_of_the_provider_is_made_anew_twice",
            "faults/test_faults_refused_batches.py::"
            "test_requests_whose_lines_are_refused_fail_and_the_others_go_again",
            "faults/test_faults_refused_batches.py::test_a_line_at_any_place_is_told_from_the_others",
            "faults/test_faults_refused_batches.py::test_lines_are_recognised_in_the_words_of_many_servers",
            "faults/test_faults_refused_batches.py::"
            "test_a_refusal_that_names_no_line_of_the_batch_blames_none",
            "faults/test_faults_refused_batches.py::"
            "test_a_model_that_no_line_may_have_is_no_fault_of_the_lines",
            "faults/test_faults_rejected_parameters.py::"
            "test_a_create_that_rejects_a_parameter_is_made_again_without_it",
            "faults/test_faults_rejected_parameters.py::"
            "test_lines_are_refused_for_one_parameter_after_the_other",
            "faults/test_faults_rejected_parameters.py::"
            "test_creates_are_refused_for_one_parameter_after_the_other",
            "faults/test_faults_rejected_parameters.py::"
            "test_a_server_that_refuses_what_is_not_sent_fails_the_rows_with_its_reason",
            "faults/test_faults_without_batches.py::"
            "test_a_list_goes_in_real_time_where_there_is_no_batch_api",
            "faults/test_faults_without_batches.py::"
            "test_a_rescued_list_says_how_many_requests_were_sent_in_real_time_and_why",
            "faults/test_faults_without_batches.py::"
            "test_a_list_that_was_answered_by_its_batch_was_not_rescued",
            "faults/test_faults_without_batches.py::"
            "test_a_batch_that_refuses_all_of_its_requests_is_done_without",
            "faults/test_faults_without_batches.py::"
            "test_a_forced_batch_waits_or_fails_as_batch_fallback_says",
            "faults/test_faults_without_batches.py::test_batches_that_fail_each_time_are_done_without",
        ),
    ),
    "C19": (
        "not seen just after the create or the upload",
        (
            "faults/test_faults_creates.py::test_c19_a_batch_that_is_not_seen_at_first_is_not_taken_for_gone",
            "faults/test_faults_creates.py::test_c19_nor_is_one_whose_create_was_not_answered",
            "faults/test_faults_files.py::test_a_create_that_does_not_know_its_file_yet_is_sent_again",
            "faults/test_faults_files.py::test_a_file_that_never_comes_ends_with_a_clear_error",
            "faults/test_faults_files.py::test_a_file_that_is_processed_and_not_listed_yet_is_uploaded_once",
        ),
    ),
    "C20": (
        "results that cannot be fetched",
        ("faults/test_faults_ends.py::test_c20_results_that_cannot_be_fetched_for_days_are_not_given_up",),
    ),
    "C21": (
        "results deleted after their retention",
        (
            "faults/test_faults_ends.py::test_c21_results_are_fetched_as_soon_as_a_batch_has_ended",
            "faults/test_faults_ends.py::"
            "test_c21_that_results_may_be_deleted_before_they_come_is_told_at_half_of_their_time",
            "faults/test_faults_ends.py::"
            "test_c21_results_that_were_deleted_before_anybody_came_fail_their_requests_and_cost_nothing_more",
        ),
    ),
    "C22": (
        "creates that land late",
        (
            "faults/test_faults_creates.py::test_c22_no_create_that_lands_late_is_paid_for_in_silence",
            "faults/test_faults_creates.py::"
            "test_c22_a_create_that_lands_late_and_never_ends_is_told_and_not_polled_for_ever",
        ),
    ),
    "C23": (
        "new words, new fields, other names",
        (
            "faults/test_faults_creates.py::"
            "test_c23_a_word_for_a_state_that_nobody_knows_is_shown_and_waited_out",
            "faults/test_faults_creates.py::test_c23_new_fields_everywhere_are_passed_over",
            "faults/test_faults_creates.py::test_c23_a_field_that_has_another_name_today_stops_nothing",
            "faults/test_faults_creates.py::test_c23_a_renamed_state_is_no_end_and_no_crash",
        ),
    ),
    "C24": (
        "no credit inside a batch",
        (
            "faults/test_faults_ends.py::"
            "test_c24_without_credit_no_item_is_burnt_and_the_job_goes_on_when_there_is_some",
            "faults/test_faults_ends.py::"
            "test_c24_lines_that_were_answered_before_the_credit_was_used_up_are_kept",
        ),
    ),
    "C25": (
        "another key, a key that is refused",
        (
            "faults/test_faults_creates.py::"
            "test_c25_with_another_key_nothing_is_concluded_from_an_empty_list",
            "faults/test_faults_creates.py::test_c25_a_key_that_is_refused_stops_the_job_and_fails_nothing",
            "faults/test_faults_creates.py::test_c25_a_key_that_is_refused_before_the_create_holds_the_job",
            "faults/test_faults_without_batches.py::"
            "test_a_list_that_keeps_going_sends_all_rows_although_each_is_refused",
        ),
    ),
    "C26": (
        "errors that repeat key or prompt",
        (
            "faults/test_faults_secrecy.py::"
            "test_c26_a_refusal_that_repeats_key_and_prompt_is_told_without_them",
            "faults/test_faults_secrecy.py::"
            "test_c26_a_refused_create_that_repeats_a_prompt_keeps_what_repeats_none",
            "faults/test_faults_secrecy.py::"
            "test_c26_lines_of_results_that_repeat_key_and_prompt_fail_without_them",
            "faults/test_faults_secrecy.py::test_c26_why_a_whole_batch_failed_is_told_without_key_and_prompt",
            "providers/test_conformance_answers.py::test_errors_never_repeat_key_or_prompt",
        ),
    ),
    "C27": (
        "hostile ids",
        (
            "faults/test_faults_secrecy.py::test_c27_no_hostile_id_reaches_a_path_a_file_or_the_store",
            "faults/test_faults_secrecy.py::test_c27_nor_one_that_names_where_the_results_are",
        ),
    ),
    "C28": (
        "usage that cannot be",
        (
            "faults/test_faults_answers.py::"
            "test_c28_usage_that_cannot_be_is_replaced_by_an_estimate_that_says_so",
            "faults/test_faults_answers.py::test_c28_usage_that_is_far_too_much_for_its_prompt_is_told",
            "realtime/test_unsound_answers.py::test_figures_that_no_call_can_have_are_an_invalid_answer",
        ),
    ),
    "E3": (
        "a full disk",
        (
            "jobs/test_realtime_runner.py::test_nothing_more_is_asked_while_answers_cannot_be_stored",
            "jobs/test_store_disks.py::test_a_limit_of_file_sizes_is_told_and_what_was_accepted_stays",
        ),
    ),
    "H10": (
        "an end that a store holds up",
        ("jobs/test_hanging_stores.py::test_a_store_that_hangs_holds_up_no_end",),
    ),
    "I1": (
        "a wall clock that is set",
        (
            "faults/test_faults_time.py::test_i1_polls_go_on_when_the_clock_is_set",
            "faults/test_faults_time.py::"
            "test_i1_a_lost_create_is_searched_for_as_long_as_before_when_the_clock_is_set_ahead",
            "faults/test_faults_time.py::test_i1_a_lost_create_is_searched_for_as_long_when_the_clock_is_"
            "set_between_two_processes",
            "faults/test_faults_time.py::"
            "test_i1_a_lost_create_is_searched_for_no_longer_when_the_clock_was_set_back",
            "faults/test_faults_time.py::test_i1_a_server_that_tells_a_wrong_date_ends_no_search",
        ),
    ),
}


def test_every_row_of_section_c_is_in_the_table() -> None:
    rows = {f"C{number}" for number in range(1, 29)} | {"B4", "B9", "B11", "B12", "B13", "B15", "B16"}
    rows |= {"E3", "H10", "I1"}
    assert set(CATALOGUE) == rows


@pytest.mark.parametrize("row", CATALOGUE)
def test_the_tests_that_hold_a_row_exist(row: str) -> None:
    for held in CATALOGUE[row][1]:
        file, _, name = held.partition("::")
        assert name in _tests_in(TESTS / file), held


def test_every_test_of_this_folder_holds_a_row() -> None:
    held = {node.partition("::")[2] for _, nodes in CATALOGUE.values() for node in nodes}
    here = {name for file in TESTS.glob("faults/test_faults_*.py") for name in _tests_in(file)}
    loose = here - held
    assert loose <= {"test_c9_results_that_vanish_from_our_disk_while_they_are_read_are_fetched_again"}


@cache
def _tests_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_bytes())
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return {name for name in names if name.startswith("test_")}
