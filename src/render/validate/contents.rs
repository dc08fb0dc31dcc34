//! Rules of what a container is made of: image, environment, references, resources.

use tributary_api::minicluster::{Container, FluxContainer, MiniClusterSpec};

use super::resources::Claims;
use super::{Problem, names, reason, resources};

pub(super) fn problems(spec: &MiniClusterSpec) -> Vec<Problem> {
    let claims = Claims::of(&spec.pod);
    let mut problems = view_problems(&spec.flux.container, spec, &claims);
    for (list, containers) in [("containers", &spec.containers), ("services", &spec.services)] {
        for (index, container) in containers.iter().enumerate() {
            problems.extend(container_problems(&format!("spec.{list}[{index}]"), container, &claims));
        }
    }
    problems.extend(group_problems("containers", &spec.containers, spec.pod.security_context.fs_group));
    problems.extend(group_problems("services", &spec.services, None));
    problems
}

fn view_problems(view: &FluxContainer, spec: &MiniClusterSpec, claims: &Claims<'_>) -> Vec<Problem> {
    let path = "spec.flux.container";
    let mut problems: Vec<_> = image(path, view.image.as_deref()).into_iter().collect();
    problems.extend(names::object(&format!("{path}.imagePullSecret"), view.image_pull_secret.as_deref()));
    problems.extend(resources::problems(path, &view.resources, claims));
    for (field, name) in [("curveCertSecret", &spec.flux.curve_cert_secret), ("mungeSecret", &spec.flux.munge_secret)] {
        problems.extend(names::object(&format!("spec.flux.{field}"), name.as_deref()));
    }
    problems
}

fn container_problems(path: &str, container: &Container, claims: &Claims<'_>) -> Vec<Problem> {
    let mut problems: Vec<_> = image(path, container.image.as_deref()).into_iter().collect();
    problems.extend(names::object(&format!("{path}.imagePullSecret"), container.image_pull_secret.as_deref()));
    problems
        .extend(container.environment.keys().filter_map(|name| names::variable(&format!("{path}.environment"), name)));
    for (variable, secret) in &container.secrets {
        let field = format!("{path}.secrets.{variable}");
        problems.extend(names::variable(&format!("{path}.secrets"), variable));
        problems.extend(names::object(&format!("{field}.name"), Some(&secret.name)));
        problems.extend(names::data_key(&format!("{field}.key"), &secret.key));
    }
    problems.extend(resources::problems(path, &container.resources, claims));
    problems
}

fn image(path: &str, image: Option<&str>) -> Option<Problem> {
    let image = image.filter(|image| image.contains(char::is_whitespace))?;
    let message = format!("{image:?} has white space, which no name of an image has: remove it");
    Some(Problem::new(format!("{path}.image"), reason::INVALID_VALUE, message))
}

/// A pod has one group for its volumes.
fn group_problems(list: &str, containers: &[Container], pod: Option<i64>) -> Vec<Problem> {
    let mut known = pod;
    let mut problems = Vec::new();
    for (index, container) in containers.iter().enumerate() {
        let Some(group) = container.security_context.fs_group else { continue };
        if let Some(other) = known.filter(|other| *other != group) {
            let message =
                format!("a pod has one group for its volumes, and {other} is written elsewhere: write one of them");
            let field = format!("spec.{list}[{index}].securityContext.fsGroup");
            problems.push(Problem::new(field, reason::CONFLICTING_FIELDS, message));
        }
        known = Some(group);
    }
    problems
}
