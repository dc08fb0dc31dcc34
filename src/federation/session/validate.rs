//! What a peer says inside a state, made fit to be kept, shown and stored, or refused. Whether it is true is for those who
//! decide on it; here a lie about one burst is kept from doing harm to anything else.

use jiff::Timestamp;
use tributary_contract::preflight::MOST_FINDINGS;
use tributary_contract::{
    Check, DesiredBurst, Finding, LeadAddress, ObservedBurst, PhaseTimes, Rejection, RejectionReason, RunReport,
};
use tributary_telemetry::TraceContext;

use crate::wire::limits;

/// Bytes of a host name (RFC 1035, 2.3.4), and of names of Kubernetes' objects.
const NAME: usize = 253;

/// Whether an offer's names are names, its UIDs UIDs and its digests digests. What they are is judged at admission.
///
/// # Errors
/// One sentence for the sender.
pub(crate) fn check(desired: &DesiredBurst) -> Result<(), String> {
    let root = &desired.root;
    let lead = desired.lead.as_ref().map(|lead| lead.address.as_str());
    let texts = [
        ("uid", Some(desired.uid.as_str()), limits::UID),
        ("root.namespace", Some(&root.namespace), NAME),
        ("root.name", Some(&root.name), NAME),
        ("root.uid", Some(&root.uid), limits::UID),
        ("root.incarnation", Some(&root.incarnation), limits::UID),
        ("slot", Some(&desired.slot), NAME),
        ("rankMapDigest", Some(&desired.rank_map_digest), limits::WORD),
        ("credentialDigest", Some(&desired.credential_digest), limits::WORD),
        ("lead.address", lead, NAME),
        ("fluxVersion", desired.flux_version.as_deref(), limits::WORD),
        ("arch", desired.arch.as_deref(), limits::WORD),
        ("hostedUid", desired.hosted_uid.as_deref(), limits::UID),
        ("offer", Some(&desired.offer), limits::UID),
        ("user", desired.user.as_deref(), limits::WORD),
    ];
    let strange = |(_, text, limit): &(&str, Option<&str>, usize)| {
        text.is_some_and(|text| text.len() > *limit || !text.bytes().all(|byte| byte.is_ascii_graphic()))
    };
    match texts.into_iter().find(strange) {
        None => Ok(()),
        Some((field, _, limit)) => Err(format!("{field} of the burst is not {limit} printable characters at most")),
    }
}

/// The trace that an offer says it belongs to, if it is one. Anything else is dropped: it is no reason to refuse a burst.
pub(crate) fn trace(said: Option<String>) -> Option<String> {
    Some(TraceContext::parse(&said?)?.to_string())
}

/// An answer as it can be stored in a status and shown on a terminal: words are cut and cleaned, and dates are of the
/// calendar that the API server knows.
pub(crate) fn fit(said: ObservedBurst) -> ObservedBurst {
    let word = |text: String| limits::plain(&text, limits::WORD);
    let uid = |text: Option<String>| text.filter(|text| text.len() <= limits::UID).map(word);
    let known = |at: &Timestamp| (1970..=9999).contains(&at.to_zoned(jiff::tz::TimeZone::UTC).year());
    let PhaseTimes { planned, offered, accepted, provisioned, warmed, scheduled, started, ready, released } =
        said.times;
    ObservedBurst {
        uid: said.uid,
        observed_generation: said.observed_generation,
        incarnation: word(said.incarnation),
        phase: said.phase,
        rejection: said.rejection.map(|rejection| Rejection {
            reason: reason(rejection.reason),
            message: limits::plain(&rejection.message, limits::MESSAGE),
        }),
        hosted_uid: uid(said.hosted_uid),
        ready_brokers: said.ready_brokers,
        simulated: said.simulated,
        preflight: findings(said.preflight),
        rank_map_digest: said.rank_map_digest.map(word),
        credential_digest: said.credential_digest.map(word),
        lead: said.lead.map(|lead| LeadAddress { address: limits::plain(&lead.address, NAME), port: lead.port }),
        message: limits::plain(&said.message, limits::MESSAGE),
        times: PhaseTimes {
            planned: planned.filter(known),
            offered: offered.filter(known),
            accepted: accepted.filter(known),
            provisioned: provisioned.filter(known),
            warmed: warmed.filter(known),
            scheduled: scheduled.filter(known),
            started: started.filter(known),
            ready: ready.filter(known),
            released: released.filter(known),
        },
        run: said.run.map(|run| RunReport {
            namespace: name(run.namespace),
            mini_cluster: name(run.mini_cluster),
            reason: if run.reason.is_empty() { run.reason } else { letters(&run.reason, "Unnamed") },
            message: limits::plain(&run.message, limits::MESSAGE),
            ..run
        }),
        used: said.used,
    }
}

/// A name of an object, or nothing: people are told commands with it in them.
fn name(text: String) -> String {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let plain = text.len() <= NAME && text.bytes().all(inner) && !text.starts_with('-');
    if plain { text } else { String::new() }
}

/// A reason of a newer version is a word, too: conditions take letters only.
fn reason(reason: RejectionReason) -> RejectionReason {
    match reason {
        RejectionReason::Other(word) => RejectionReason::Other(letters(&word, "Rejected")),
        known => known,
    }
}

/// Few findings, and one of each check: a list of the API holds no other.
fn findings(said: Vec<Finding>) -> Vec<Finding> {
    let mut fit: Vec<Finding> = Vec::new();
    for Finding { check, outcome, message, hint } in said.into_iter().take(MOST_FINDINGS) {
        let check = match check {
            Check::Other(word) => Check::Other(letters(&word, "Unnamed")),
            known => known,
        };
        if !fit.iter().any(|known| known.check.as_str() == check.as_str()) {
            let [message, hint] = [message, hint].map(|text| limits::plain(&text, limits::MESSAGE));
            fit.push(Finding { check, outcome, message, hint });
        }
    }
    fit
}

fn letters(word: &str, unnamed: &str) -> String {
    let letters: String = word.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
    let begins = letters.starts_with(|first: char| first.is_ascii_alphabetic());
    if begins { letters } else { unnamed.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{desired, observed};

    #[test]
    fn an_offer_with_a_field_of_any_other_shape_is_refused() {
        assert_eq!(check(&desired("a", 1)), Ok(()));
        type Change = fn(&mut DesiredBurst);
        let lies: [(&str, Change); 6] = [
            ("root.incarnation", |burst| burst.root.incarnation = "x".repeat(limits::UID + 1)),
            ("root.namespace", |burst| burst.root.namespace = "kube system".into()),
            ("slot", |burst| burst.slot = "a\u{1b}[2J".into()),
            ("credentialDigest", |burst| burst.credential_digest = "0".repeat(1 << 19)),
            ("lead.address", |burst| burst.lead = Some(LeadAddress { address: "ä".into(), port: 1 })),
            ("hostedUid", |burst| burst.hosted_uid = Some("u".repeat(limits::UID + 1))),
        ];
        for (field, lie) in lies {
            let mut burst = desired("a", 1);
            lie(&mut burst);
            assert!(check(&burst).unwrap_err().starts_with(field), "{field}");
        }
    }

    #[test]
    fn only_a_trace_is_kept_as_one() {
        let context = TraceContext::about(&["a"]).to_string();
        assert_eq!(trace(Some(context.clone())), Some(context));
        assert_eq!([None, Some("t".repeat(1 << 20)), Some("a\u{1b}[2J".into())].map(trace), [None, None, None]);
    }

    #[test]
    fn findings_are_few_and_one_of_each() {
        let finding = |check: Check| Finding::unknown(check, "a\u{1b}[2J", "h".repeat(1 << 16));
        let mut preflight = vec![finding(Check::User), finding(Check::Other("User".into()))];
        preflight.extend((0..100).map(|number| finding(Check::Other(format!("Moon-{number}")))));
        let fit = fit(ObservedBurst { preflight, ..observed("a", 1) }).preflight;
        assert_eq!(fit.len(), MOST_FINDINGS - 1);
        assert_eq!((fit[0].check.as_str(), fit[1].check.as_str()), ("User", "Moon0"));
        assert!(fit.iter().all(|one| one.hint.len() <= limits::MESSAGE && !one.message.contains('\u{1b}')));
    }

    #[test]
    fn what_people_are_told_to_type_is_made_of_names() {
        let names = |namespace: &str, mini_cluster: &str| {
            let run = RunReport {
                namespace: namespace.into(),
                mini_cluster: mini_cluster.into(),
                reason: "Command\u{1b}[2JFailed".into(),
                message: "m".repeat(99_999),
                ..RunReport::default()
            };
            let run = fit(ObservedBurst { run: Some(run), ..observed("a", 1) }).run.unwrap();
            assert_eq!((run.reason.as_str(), run.message.len()), ("Command2JFailed", limits::MESSAGE));
            (run.namespace, run.mini_cluster)
        };
        assert_eq!(names("hpc", "lammps-1f"), ("hpc".into(), "lammps-1f".into()));
        assert_eq!(names("hpc; rm -rf ~", "--all"), Default::default());
        assert_eq!(names("$(reboot)", "a\u{1b}[2J"), Default::default());
    }

    #[test]
    fn an_answer_is_cut_to_what_a_status_takes() {
        let year = |year: i16| jiff::civil::date(year, 1, 1).to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp();
        let said = ObservedBurst {
            incarnation: "i".repeat(9_999),
            rejection: Some(Rejection::new(RejectionReason::Other("No\nway, sir!".into()), "r".repeat(99_999))),
            hosted_uid: Some("h".repeat(9_999)),
            message: format!("fine\u{1b}[2J{}", "m".repeat(99_999)),
            times: PhaseTimes { accepted: Some(year(2026)), ready: Some(year(-4000)), ..PhaseTimes::default() },
            ..observed("a", 1)
        };
        let fit = fit(said);
        assert_eq!((fit.incarnation.len(), fit.hosted_uid), (limits::WORD, None));
        assert!(fit.message.starts_with("fine [2Jm") && fit.message.len() == limits::MESSAGE);
        let Rejection { reason, message } = fit.rejection.unwrap();
        assert_eq!((reason.as_str(), message.len()), ("Nowaysir", limits::MESSAGE));
        assert_eq!(fit.times, PhaseTimes { accepted: Some(year(2026)), ..PhaseTimes::default() });
        let plain = observed("a", 3);
        assert_eq!(super::fit(plain.clone()), plain);
    }
}
