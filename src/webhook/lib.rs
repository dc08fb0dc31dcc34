//! The conversion webhook: MiniClusters of one version in another, for the API server.
//!
//! Here is what it answers and which certificate it answers with, both pure; the server and the definition that leads
//! the API server to it are the daemon's.
//!
//! Source: <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/#webhook-request-and-response>
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bounded;
pub mod certificate;

use std::borrow::Cow;
use std::io;

use serde::Deserialize;
use serde::de::DeserializeSeed;
use serde_json::{Value, json};
use tributary_api::v1alpha1;

use self::bounded::Items;

/// Where the API server posts its reviews.
pub const PATH: &str = "/convert";
/// The version of reviews that is understood.
pub const REVIEW_VERSION: &str = "v1";

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";
/// Most characters of what is wrong that are told: some of them are a stranger's.
const MOST_SHOWN: usize = 2_000;

/// Most bytes that may be taken while one object is converted, by all there is of it then. The largest that etcd holds have
/// 1.5 MiB as text, and 13 bytes of it make an entry of a map.
pub(crate) const MOST_OF_OBJECT: usize = 32 << 20;
/// What an object of a short review may take: so much, and for each byte of the review.
const OF_ANY: usize = 6 << 20;
const OF_BYTE: usize = 64;
/// The longest annotation: the API server takes no more of all of them together. What is kept of the other version is JSON in
/// one, and takes what it would in the spec.
const LONGEST_ANNOTATION: usize = 256 << 10;

/// What may be taken while one object of a review of this size is converted.
pub const fn most_of_object(size: usize) -> usize {
    let most = size.saturating_mul(OF_BYTE).saturating_add(OF_ANY);
    if most < MOST_OF_OBJECT { most } else { MOST_OF_OBJECT }
}
/// The end of an answer, behind its objects.
const END: &[u8] = b"]}}";
/// An answer is at most so many times as large as its review, and [`MOST_BESIDE`].
pub const MOST_TIMES: usize = 2;
/// What an answer may have beside that, in bytes.
pub const MOST_BESIDE: usize = 64 << 10;

/// What was posted is no review: HTTP status 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAReview {
    /// It is something else.
    #[error("failed to read the review: a {KIND} of {API_VERSION} with a request is expected, not {found:?}")]
    Kind {
        /// What it says it is.
        found: String,
    },
    /// It is no JSON, or of another form.
    #[error("failed to read the review: a {KIND} of {API_VERSION} is expected: {why}")]
    Form {
        /// What is wrong, and where.
        why: String,
    },
}

/// The answer to a review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What goes to the API server: JSON.
    pub json: Vec<u8>,
    /// Why nothing is converted.
    pub failure: Option<String>,
}

/// A review, but for its objects.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Review<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Request<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow, rename = "desiredAPIVersion")]
    desired: Cow<'a, str>,
}

/// Answers a `ConversionReview`: with all objects in the version that is asked for, or, if one of them cannot be
/// converted, with none and the reason, which names it. The API server then refuses the request it has; what is stored
/// stays as it is.
///
/// Whoever can reach the webhook may post anything. So what is not a review is refused before anything is made of it, objects
/// are converted one after the other, each up to a size, and so is the answer: besides `body` and the answer this takes
/// [`most_of_object`] at most, and one text in `body`. One that would take more is an error, or in v1alpha1, which nobody
/// stores, without its spec.
///
/// # Errors
/// [`NotAReview`].
pub fn review(body: &[u8]) -> Result<Answer, NotAReview> {
    let form = |error: serde_json::Error| NotAReview::Form { why: shown(&error.to_string()) };
    let Review { api_version, kind, request } = serde_json::from_slice(body).map_err(form)?;
    let Some(Request { uid, desired }) = request.filter(|_| api_version == API_VERSION && kind == KIND) else {
        return Err(NotAReview::Kind { found: shown(&format!("{api_version} {kind}")) });
    };
    // The objects go between these two.
    let start = |result: Value| {
        let uid = Value::from(&*uid);
        format!(
            r#"{{"apiVersion":"{API_VERSION}","kind":"{KIND}","response":{{"uid":{uid},"result":{result},"convertedObjects":["#
        )
    };
    let most = body.len() * MOST_TIMES + MOST_BESIDE;
    let mut json = Vec::with_capacity(most);
    json.extend_from_slice(start(json!({"status": "Success"})).as_bytes());
    let beside = MOST_BESIDE.saturating_sub(json.len() + END.len());
    let mut objects = Objects { wanted: &desired, most_of_one: most_of_object(body.len()), most, beside, json };
    let (mut first, mut failure) = (true, None);
    let mut each = |text: &str| {
        if !std::mem::take(&mut first) {
            objects.json.push(b',');
        }
        objects.convert(text).map_err(|message| {
            let message = shown(&message);
            failure = Some(message.clone());
            message
        })
    };
    let items = Items { path: &["request", "objects"], each: &mut each };
    let outcome = items.deserialize(&mut serde_json::Deserializer::from_slice(body));
    let Objects { mut json, .. } = objects;
    if let Err(error) = outcome {
        let failure = failure.unwrap_or_else(|| shown(&format!("failed to read an object to convert: {error}")));
        json.clear();
        json.extend_from_slice(start(json!({"status": "Failure", "message": failure})).as_bytes());
        json.extend_from_slice(END);
        return Ok(Answer { json, failure: Some(failure) });
    }
    json.extend_from_slice(END);
    Ok(Answer { json, failure: None })
}

fn shown(text: &str) -> String {
    text.chars().take(MOST_SHOWN).collect()
}

/// A text that does not grow further than this.
struct UpTo<'a> {
    left: usize,
    text: &'a mut Vec<u8>,
}

impl io::Write for UpTo<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The objects of a review, as they are answered.
struct Objects<'a> {
    /// The version that is asked for.
    wanted: &'a str,
    /// Bytes that may be taken while one is converted.
    most_of_one: usize,
    /// The longest answer.
    most: usize,
    /// What is left of [`MOST_BESIDE`].
    beside: usize,
    /// The answer so far.
    json: Vec<u8>,
}

impl Objects<'_> {
    /// Converts one. In v1alpha1 one that costs too much is shown without its spec: otherwise nobody could list any.
    fn convert(&mut self, text: &str) -> Result<(), String> {
        let own = text.len() * MOST_TIMES;
        let is_looked_at = self.wanted == v1alpha1::V1ALPHA1;
        let failure = match bounded::read(text, self.most_of_one) {
            Ok((object, left)) => {
                let converted = convert(&object, self.wanted, left)?;
                drop(object);
                // Whatever one takes beside its own, half of it is left for the others.
                let room = if is_looked_at { own + self.beside / 2 } else { usize::MAX };
                match self.write(&converted, room) {
                    Ok(written) => {
                        self.beside = self.beside.saturating_sub(written.saturating_sub(own));
                        return Ok(());
                    }
                    Err(failure) => failure,
                }
            }
            Err(error) => format!("failed to read an object to convert: {error}"),
        };
        let metadata = bounded::metadata(text, v1alpha1::V1ALPHA2, self.most_of_one).filter(|_| is_looked_at);
        let Some(metadata) = metadata else { return Err(failure) };
        self.write(&v1alpha1::without_spec(metadata), usize::MAX).map(drop)
    }

    /// How many bytes it took.
    fn write(&mut self, object: &Value, room: usize) -> Result<usize, String> {
        let before = self.json.len();
        let left = self.most.saturating_sub(before + END.len()).min(room);
        let written = serde_json::to_writer(UpTo { left, text: &mut self.json }, object);
        written.map(|()| self.json.len() - before).map_err(|_| {
            self.json.truncate(before);
            format!("the answer would be more than {MOST_TIMES} times as large as the review")
        })
    }
}

/// `left` bytes may be taken besides what `object` takes itself.
fn convert(object: &Value, wanted: &str, left: usize) -> Result<Value, String> {
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    let is_long = |value: &Value| value.as_str().is_some_and(|text| text.len() > LONGEST_ANNOTATION);
    let converted = if annotations.is_some_and(|annotations| annotations.values().any(is_long)) {
        Err(format!("an annotation has more than {LONGEST_ANNOTATION} bytes"))
    } else {
        let converted = v1alpha1::convert_where(object, wanted, |kept| bounded::suffices(left, kept));
        converted.map_err(|error| error.to_string())
    };
    converted.map_err(|error| {
        let metadata = |key: &str| object.pointer(&format!("/metadata/{key}")).and_then(Value::as_str).unwrap_or("?");
        format!("failed to convert {}/{} to {wanted}: {error}", metadata("namespace"), metadata("name"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(review: Value) -> Result<Value, NotAReview> {
        super::review(review.to_string().as_bytes()).map(|answer| serde_json::from_slice(&answer.json).unwrap())
    }

    fn asked(objects: Value) -> Value {
        json!({"apiVersion": API_VERSION, "kind": KIND, "request": {
            "uid": "7", "desiredAPIVersion": "flux-framework.org/v1alpha2", "objects": objects}})
    }

    fn lake(version: &str) -> Value {
        json!({"apiVersion": format!("flux-framework.org/{version}"), "kind": "MiniCluster",
            "metadata": {"name": "lake", "namespace": "waters", "uid": "1", "managedFields": [{"manager": "kubectl"}]},
            "spec": {"containers": [{"image": "x", "command": "hostname"}]}})
    }

    #[test]
    fn all_objects_come_back_in_their_order() {
        let answer = review(asked(json!([lake("v1alpha1"), lake("v1alpha2")]))).unwrap();
        assert_eq!(answer["kind"], KIND);
        assert_eq!(
            (&answer["response"]["uid"], &answer["response"]["result"]["status"]),
            (&json!("7"), &json!("Success"))
        );
        let objects = answer["response"]["convertedObjects"].as_array().unwrap();
        assert_eq!(objects.len(), 2);
        assert!(objects.iter().all(|object| object["apiVersion"] == "flux-framework.org/v1alpha2"));
        // The API server refuses an answer in which more than labels and annotations differ.
        let mut metadata = objects[0]["metadata"].clone();
        metadata.as_object_mut().unwrap().remove("annotations");
        assert_eq!(metadata, lake("v1alpha1")["metadata"]);
        assert_eq!(objects[1], lake("v1alpha2"));
    }

    #[test]
    fn one_bad_object_fails_the_request_by_its_name() {
        let mut bad = lake("v1alpha1");
        bad["apiVersion"] = json!("flux-framework.org/v1beta1");
        bad["metadata"]["name"] = json!("pond");
        let answer = review(asked(json!([lake("v1alpha1"), bad]))).unwrap();
        let response = &answer["response"];
        assert_eq!((&response["uid"], &response["convertedObjects"]), (&json!("7"), &json!([])));
        assert_eq!(
            response["result"],
            json!({"status": "Failure", "message": "failed to convert waters/pond to flux-framework.org/v1alpha2: \
                version \"flux-framework.org/v1beta1\" is not known: there are flux-framework.org/v1alpha1 and \
                flux-framework.org/v1alpha2"})
        );
    }

    #[test]
    fn anything_else_is_refused() {
        for other in [json!(null), json!([1]), json!({"kind": "AdmissionReview", "request": {}}), json!({"kind": KIND})]
        {
            assert!(review(other).is_err());
        }
        let error = review(json!({"apiVersion": "v1", "kind": "Pod", "request": {}})).unwrap_err().to_string();
        assert!(error.contains("not \"v1 Pod\""), "{error}");
    }

    #[test]
    fn what_is_no_review_is_refused_before_anything_is_made_of_it() {
        let refused = |body: &[u8]| super::review(body).unwrap_err().to_string();
        let zeros = format!("[{}0]", "0,".repeat(100_000));
        let told = refused(zeros.as_bytes());
        assert!(told.contains("at line 1 column 2"), "nothing is read beyond the first: {told}");
        assert!(refused(&[]).contains("EOF"));
        let other = json!({"apiVersion": "v1", "kind": "x".repeat(9_999)}).to_string();
        assert!(refused(other.as_bytes()).len() < 3_000);
        let other = json!({"request": "x".repeat(9_999)}).to_string();
        assert!(refused(other.as_bytes()).len() < 3_000);
    }

    #[test]
    fn objects_are_read_one_after_the_other_up_to_a_size() {
        let told = |objects: &str| {
            let body = asked(json!("HERE")).to_string().replace("\"HERE\"", objects);
            super::review(body.as_bytes()).unwrap().failure.unwrap_or_default()
        };
        let too_large = "an object is too large, or has too many fields";
        let zeros = |count| format!("{}0", "0,".repeat(count));
        assert!(told(&format!("[[{}]]", zeros(200_000))).contains(too_large));
        assert!(told(&format!("[{{\"a\":[{}]}}]", zeros(200_000))).contains(too_large));
        let mut bomb = lake("v1alpha1");
        bomb["metadata"]["annotations"] = json!({"tributary.dev/kept-v1alpha2": format!("[{}0]", zeros(200_000))});
        assert!(
            told(&format!("[{bomb}]")).contains("waters/lake to flux-framework.org/v1alpha2: an annotation has more")
        );
        assert!(told(&format!("[\"{}\"]", "x".repeat(MOST_OF_OBJECT))).contains(too_large));
        assert!(told(&format!("[{}]", zeros(200_000))).contains("kind \"\" is not known"), "the first one is enough");
        assert!(
            told(&format!("[{}{}]", "[".repeat(200), "]".repeat(200))).contains("failed to read an object"),
            "too deep"
        );
        assert_eq!(told("null"), "");
        // Whoever is in front of the desired version is converted as well as whoever is behind it.
        let body = format!(
            r#"{{"request":{{"objects":[{}],"desiredAPIVersion":"flux-framework.org/v1alpha2","uid":"[]"}},"kind":"{KIND}",
                "apiVersion":"{API_VERSION}"}}"#,
            lake("v1alpha1")
        );
        let answer = super::review(body.as_bytes()).unwrap();
        let answer: Value = serde_json::from_slice(&answer.json).unwrap();
        assert_eq!(answer["response"]["uid"], "[]");
        assert_eq!(answer["response"]["convertedObjects"][0]["apiVersion"], "flux-framework.org/v1alpha2");
    }

    #[test]
    fn an_answer_does_not_outgrow_its_review() {
        let mut large = lake("v1alpha2");
        // A number that is short here is written in full.
        large["status"] = json!("HERE");
        let body = asked(json!([large])).to_string().replace("\"HERE\"", &format!("[{}0]", "1e9,".repeat(50_000)));
        let answer = super::review(body.as_bytes()).unwrap();
        assert!(answer.failure.unwrap().contains("2 times as large"), "1000000000.0 for 1e9");
        assert!(answer.json.len() < 1_000);
    }

    #[test]
    fn a_list_as_long_as_a_page_and_an_object_as_large_as_etcd_holds_are_converted() {
        let mut one = lake("v1alpha1");
        let field = |field: u32| (format!("f:{field}"), json!({}));
        one["metadata"]["managedFields"] =
            json!([{"fieldsV1": (0..2_000).map(field).collect::<serde_json::Map<_, _>>()}]);
        let review = asked(json!(vec![one.clone(); 500])).to_string();
        assert!(review.len() > 11 << 20, "{}", review.len());
        assert_eq!(super::review(review.as_bytes()).unwrap().failure, None);
        one["metadata"]["managedFields"] =
            json!([{"fieldsV1": (0..100_000).map(field).collect::<serde_json::Map<_, _>>()}]);
        assert!(one.to_string().len() > 1_100_000);
        let review = asked(json!([one])).to_string();
        let failure = super::review(review.as_bytes()).unwrap().failure;
        assert_eq!(failure, None);
    }

    #[test]
    fn what_is_no_metadata_is_refused() {
        let text = json!("x");
        for (metadata, field) in [
            (text.clone(), "metadata"),
            (json!([{}]), "metadata"),
            (json!(1), "metadata"),
            (json!(false), "metadata"),
            (json!({"annotations": text}), "metadata.annotations"),
            (json!({"annotations": [1]}), "metadata.annotations"),
        ] {
            for version in ["v1alpha1", "v1alpha2"] {
                let mut object = lake("v1alpha2");
                object["apiVersion"] = json!(format!("flux-framework.org/{version}"));
                object["metadata"] = metadata.clone();
                // Only one of them can say this.
                object["spec"] = json!({"containers": [], "launcher": true, "podLabels": {"a": "b"}});
                let mut asked = asked(json!([object]));
                let other = if version == "v1alpha1" { "v1alpha2" } else { "v1alpha1" };
                asked["request"]["desiredAPIVersion"] = json!(format!("flux-framework.org/{other}"));
                let told = &review(asked).unwrap()["response"]["result"];
                let message = told["message"].as_str().unwrap_or_default();
                assert!(message.ends_with(&format!("{field} is no object")), "{metadata} {version}: {told}");
            }
        }
    }

    /// The danger: whoever may write one MiniCluster keeps everybody from listing all of them in v1alpha1.
    #[test]
    fn an_object_that_costs_too_much_is_shown_without_its_spec_and_all_others_are_as_they_are() {
        let changed = |pointer: &str, field: &str, value: Value| {
            let mut object = lake("v1alpha2");
            object["metadata"]["labels"] = json!({"a": "b"});
            object["metadata"]["annotations"] = json!({"c": "d"});
            object["metadata"]["uid"] = json!("lake-uid");
            object.pointer_mut(pointer).unwrap()[field] = value;
            object
        };
        let deep = |depth| (0..depth).fold(json!(1), |below, _| json!({"a": below}));
        let entries = Value::from(format!("[{}{{}}]", "{},".repeat(20_000)));
        let read_so = |what: &str, object: Value| {
            let mut asked = asked(json!([object, lake("v1alpha2")]));
            asked["request"]["desiredAPIVersion"] = json!("flux-framework.org/v1alpha1");
            let answer = review(asked).unwrap();
            let response = &answer["response"];
            assert_eq!(response["result"], json!({"status": "Success"}), "{what}");
            let [shown, other] = response["convertedObjects"].as_array().unwrap().as_slice() else { panic!("two") };
            let alone = v1alpha1::convert(&lake("v1alpha2"), "flux-framework.org/v1alpha1").unwrap();
            assert_eq!(*other, alone, "{what}");
            for (field, value) in [
                ("name", "lake"),
                ("namespace", "waters"),
                ("uid", "lake-uid"),
                ("labels/a", "b"),
                ("annotations/c", "d"),
            ] {
                assert_eq!(shown.pointer(&format!("/metadata/{field}")), Some(&json!(value)), "{what}: {field}");
            }
            shown.clone()
        };
        for (what, object) in [
            ("memory", changed("/spec", "containers", json!(vec![json!({}); 6_000]))),
            ("room", changed("/spec", "containers", json!(vec![json!({}); 1_000]))),
            ("depth", changed("/spec", "pod", deep(150))),
            ("metadata", changed("/metadata", "finalizers", json!(vec!["a/b"; 200_000]))),
        ] {
            let shown = read_so(what, object);
            assert_eq!((&shown["kind"], &shown["spec"]), (&json!("MiniCluster"), &json!({})));
            let stored = v1alpha1::convert(&shown, "flux-framework.org/v1alpha2").unwrap_err().to_string();
            assert!(stored.contains("too large to be edited as v1alpha1"), "{stored}");
        }
        for kept in v1alpha1::KEPT {
            let shown = read_so(kept, changed("/metadata/annotations", kept, entries.clone()));
            assert_eq!(shown["spec"]["containers"][0]["command"], "hostname", "{kept}");
            let back = v1alpha1::convert(&shown, "flux-framework.org/v1alpha2").unwrap();
            assert_eq!(back["spec"], lake("v1alpha2")["spec"]);
        }
        // Whoever writes so much in v1alpha1 is told.
        let mut written = lake("v1alpha1");
        written["metadata"]["annotations"] = json!({"tributary.dev/kept-v1alpha2": entries});
        let told = review(asked(json!([written]))).unwrap()["response"]["result"]["message"].to_string();
        assert!(told.contains("what it keeps of the other version is too large"), "{told}");
    }
}
