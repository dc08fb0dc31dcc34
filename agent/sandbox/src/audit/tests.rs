use std::io::Write;

use super::*;

const COMPLETE: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"a1","stage":"ResponseComplete","requestURI":"/apis/batch/v1/namespaces/default/jobs/one/status?fieldManager=m","verb":"patch","user":{"username":"agent","groups":["system:masters","system:authenticated"],"extra":{"authentication.kubernetes.io/credential-id":["X509SHA256=00"]}},"sourceIPs":["127.0.0.1"],"userAgent":"kube","objectRef":{"resource":"jobs","namespace":"default","name":"one","apiGroup":"batch","apiVersion":"v1","subresource":"status"},"responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2025-11-21T10:00:00.000100Z","stageTimestamp":"2025-11-21T10:00:00.003200Z","annotations":{"authorization.k8s.io/decision":"allow"}}"#;

fn line(audit_id: &str, user: &str, verb: &str, resource: &str, stage: &str) -> String {
    COMPLETE
        .replace("\"a1\"", &format!("\"{audit_id}\""))
        .replace("\"agent\"", &format!("\"{user}\""))
        .replace("\"patch\"", &format!("\"{verb}\""))
        .replace("\"jobs\"", &format!("\"{resource}\""))
        .replace("ResponseComplete", stage)
        .replace(",\"subresource\":\"status\"", "")
}

fn log(lines: &[String]) -> (tempfile::NamedTempFile, AuditLog) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for line in lines {
        writeln!(file, "{line}").unwrap();
    }
    let log = AuditLog::at(file.path());
    (file, log)
}

#[test]
fn an_event_is_read_whole() {
    let (_file, log) = log(&[COMPLETE.to_owned()]);
    let event = Event {
        audit_id: "a1".to_owned(),
        stage: Stage::ResponseComplete,
        user: "agent".to_owned(),
        user_agent: "kube".to_owned(),
        verb: "patch".to_owned(),
        uri: "/apis/batch/v1/namespaces/default/jobs/one/status?fieldManager=m".to_owned(),
        group: "batch".to_owned(),
        resource: "jobs".to_owned(),
        subresource: "status".to_owned(),
        namespace: "default".to_owned(),
        name: "one".to_owned(),
        code: 200,
    };
    assert_eq!(log.all().unwrap(), [event]);
}

#[test]
fn paths_that_are_no_resources_have_no_object() {
    let line = r#"{"auditID":"b","stage":"ResponseComplete","requestURI":"/readyz","verb":"get","user":{},"responseStatus":{"code":200},"requestReceivedTimestamp":"2025-11-21T10:00:00.000100Z","stageTimestamp":"2025-11-21T10:00:00.003200Z"}"#;
    let (_file, log) = log(&[line.to_owned()]);
    let event = log.all().unwrap().remove(0);
    assert_eq!((event.uri.as_str(), event.resource.as_str(), event.user.as_str()), ("/readyz", "", ""));
}

#[test]
fn requests_are_counted_once_and_only_after_the_marker() {
    let (mut file, log) = log(&[
        line("old", "agent", "create", "jobs", "ResponseComplete"),
        line("watch-1", "agent", "watch", "pods", "ResponseStarted"),
    ]);
    let marker = log.marker().unwrap();
    for line in [
        line("watch-1", "agent", "watch", "pods", "ResponseComplete"),
        line("watch-2", "agent", "watch", "pods", "ResponseStarted"),
        line("get", "agent", "get", "secrets", "ResponseComplete"),
        line("other", "admin", "get", "secrets", "ResponseComplete"),
    ] {
        writeln!(file, "{line}").unwrap();
    }
    // The API server is in the middle of this one.
    write!(file, "{}", &COMPLETE[..40]).unwrap();
    let requests = log.requests("agent", marker).unwrap();
    let ids: Vec<_> = requests.iter().map(|event| event.audit_id.as_str()).collect();
    assert_eq!(ids, ["watch-2", "get"]);
    assert_eq!(log.all().unwrap().len(), 6);
}

#[test]
fn something_else_in_the_log_is_an_error_that_shows_it() {
    let (_file, log) = log(&["{\"hello\":1}".to_owned()]);
    assert!(format!("{:#}", log.all().unwrap_err()).contains("not an audit event: {\"hello\":1}"));
}
